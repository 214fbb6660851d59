"""Records to samples through the cache: tokenised anew only where data, template, tokenizer, options or code
are others than before.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from train.data.cache import cached
from train.data.formats import Record
from train.data.records import hash_file
from train.data.sample import IGNORED, Sample, TemplateFault
from train.data.template import ChatTemplate

if TYPE_CHECKING:
    import numpy

    from train.data.cache import Arrays

MANY = 2000
"""Fewer records than this are tokenised as quickly as looked up."""
Made = list[Sample] | TemplateFault
"""What a record gives: its samples, or why it has none."""


def through_cache(
    records: Sequence[Record], made: Iterator[Made], key: Mapping[str, Any], notes: list[str]
) -> Iterator[Made]:
    """What `made` gives for each record, in order, from the cache where it was made before.

    `made`: lazy, asked for nothing where the cache has it. `key`: of `sample_key`.
    """
    if len(records) < MANY:
        return made
    arrays = cached({**key, "num_records": len(records)}, lambda: pack(made), notes)
    return unpack(arrays, records)


def sample_key(template: ChatTemplate, digest: str, kinds: Sequence[str]) -> dict[str, Any]:
    """All that decides the samples of rows: `digest` of the data and the kinds of its files, the tokenizer
    with its chat template and its switches, this code and the libraries that render and tokenise.
    """
    tokenizer: Any = template.tokenizer
    libraries = ("transformers", "tokenizers", "jinja2")
    code = sorted(Path(__file__).parent.glob("*.py"))
    return {
        "data": digest,
        "tokenizer": _tokenizer_identity(tokenizer),
        "template": repr(tokenizer.chat_template),
        "options": {"thinking": template.thinking, "train_on": template.train_on, "kinds": list(kinds)},
        "code": hashlib.sha256(b"".join(path.read_bytes() for path in code)).hexdigest(),
        "versions": {name: importlib.metadata.version(name) for name in libraries},
    }


def _tokenizer_identity(tokenizer: Any) -> dict[str, str]:
    """The hash of each of its files, and what was added to it since they were read."""
    folder = Path(getattr(tokenizer, "name_or_path", "") or "none")
    names = sorted({*tokenizer.vocab_files_names.values(), "tokenizer.json", "tokenizer_config.json"})
    names += ["added_tokens.json", "special_tokens_map.json"]
    found = {name: hash_file(folder / name) for name in names if (folder / name).is_file()}
    added = repr(sorted((number, repr(token)) for number, token in tokenizer.added_tokens_decoder.items()))
    return found | {"class": type(tokenizer).__name__, "size": str(len(tokenizer)), "added": added}


def pack(made: Iterable[Made]) -> Arrays:
    """Samples as arrays: `input_ids` of all one after the other (int32), `is_target` for each of them (bits),
    `lengths` of samples, `counts` of samples per record (-1: a fault), and `faults` as text.
    """
    import numpy

    ids, labels, lengths, counts = (array("i") for _ in range(4))
    faults: list[str] = []
    for one in made:
        if isinstance(one, TemplateFault):
            counts.append(-1)
            faults.append(str(one))
            continue
        counts.append(len(one))
        for sample in one:
            lengths.append(len(sample.input_ids))
            ids.extend(sample.input_ids)
            labels.extend(sample.labels)
    numbers = {"input_ids": ids, "lengths": lengths, "counts": counts}
    arrays = {name: numpy.frombuffer(value, numpy.int32) for name, value in numbers.items()}
    written = numpy.frombuffer(labels, numpy.int32)
    is_target = written != IGNORED
    if not numpy.array_equal(_labels(arrays["input_ids"], is_target), written):
        raise ValueError("a label is another token than the one at its place")
    text = "\0".join(faults).encode("utf-8", "surrogatepass")
    return arrays | {"is_target": numpy.packbits(is_target), "faults": numpy.frombuffer(text, numpy.uint8)}


def _labels(ids: numpy.ndarray, is_target: numpy.ndarray) -> numpy.ndarray:
    import numpy

    return numpy.where(is_target, ids, numpy.int32(IGNORED))


def _array(values: numpy.ndarray) -> array[int]:
    made = array("i")
    made.frombytes(values.tobytes())
    return made


def unpack(arrays: Arrays, records: Sequence[Record]) -> Iterator[Made]:
    """What was packed, one record at a time; a target's label is its own id."""
    import numpy

    ids = arrays["input_ids"]
    is_target = numpy.unpackbits(arrays["is_target"], count=len(ids)).view(bool)
    labels = _labels(ids, is_target)
    ends = numpy.cumsum(arrays["lengths"], dtype=numpy.int64)
    faults = iter(arrays["faults"].tobytes().decode("utf-8", "surrogatepass").split("\0"))
    number = 0
    for record, count in zip(records, arrays["counts"].tolist(), strict=True):
        if count < 0:
            yield TemplateFault(next(faults))
            continue
        made = []
        for place in range(number, number + count):
            part = slice(int(ends[place] - arrays["lengths"][place]), int(ends[place]))
            made.append(Sample(_array(ids[part]), _array(labels[part]), record.place))
        number += count
        yield made
