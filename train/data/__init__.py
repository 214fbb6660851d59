"""From files to labelled token rows: readers, formats, chat template, collation."""
