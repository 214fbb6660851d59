"""What is wrong with a recipe before it travels along: the run that reads it starts much later, elsewhere."""

from __future__ import annotations

import yaml


def recipe_fault(text: str) -> str:
    """Return why a run could not read a recipe, nothing where it can; its fields are the run's to judge."""
    try:
        content = yaml.safe_load(text)
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or (str(error) or type(error).__name__).splitlines()[0]
        return f"is no YAML: {f'line {mark.line + 1}: ' if mark else ''}{what}"
    if content is None:
        return ""
    if not isinstance(content, dict) or not isinstance(node, yaml.MappingNode):
        return f"is a {type(content).__name__}, a mapping of a recipe's fields is due"
    names = [key.value for key, _ in node.value]
    twice = [f"{name} is given twice" for name in dict.fromkeys(names) if names.count(name) > 1]
    return "; ".join(
        [*twice, *(f"{key!r} is no name of a field" for key in content if not isinstance(key, str))]
    )
