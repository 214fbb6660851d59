"""Tools of a row and calls of them, in the one shape that chat templates are given by a server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from train.data.records import loads


class RowFault(ValueError):
    """A row that its format cannot take; the text says which field and why."""


def said(value: Any) -> str:
    """A value for a message: its type and its beginning."""
    return f"{type(value).__name__} {value!r:.40}"


def listed(row: dict[str, Any], field: str) -> list[Any]:
    """A field that is due as a list; text that holds a JSON list (a CSV cell) is read as one."""
    value = row[field]
    if isinstance(value, str) and value.lstrip().startswith("["):
        value = _parsed(value, f"field {field!r}")
    if not isinstance(value, list):
        raise RowFault(f"field {field!r} is {said(value)}, a list is due")
    return [loaded if (loaded := _object(item)) is not None else item for item in value]


def _object(item: Any) -> Any:
    """What a JSON text in a list holds, None for another text: some tables keep turns so."""
    if not isinstance(item, str) or not item.startswith("{"):
        return None
    try:
        return loads(item)
    except (ValueError, RecursionError):
        return None


def _parsed(value: str, place: str) -> Any:
    try:
        return loads(value)
    except (ValueError, RecursionError) as fault:
        raise RowFault(f"{place} is not valid JSON: {fault}") from None


def read_tools(row: dict[str, Any]) -> list[dict[str, Any]] | None:
    """The row's `tools` (or `functions`), each as {"type": "function", "function": {...}}; None without any.

    A bare function is put into that shape, as servers do.
    """
    field = next((name for name in ("tools", "functions") if row.get(name)), None)
    if field is None:
        return None
    tools = [_tool(tool, f"{field}[{place}]") for place, tool in enumerate(listed(row, field))]
    return tools or None


def _tool(tool: Any, place: str) -> dict[str, Any]:
    if not isinstance(tool, dict):
        raise RowFault(f"{place} is {said(tool)}, an object is due")
    wrapped = tool if "function" in tool else {"type": "function", "function": tool}
    function = wrapped["function"]
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RowFault(f"{place} has no function with a name")
    if wrapped.get("type") not in ("function", None):
        raise RowFault(f"{place}.type is {said(wrapped['type'])}, only functions are known")
    return {key: value for key, value in ({"type": "function"} | wrapped).items() if value is not None}


def tool_calls(turn: dict[str, Any], place: str) -> list[dict[str, Any]]:
    """The calls of a turn, `tool_calls` or the older `function_call`; empty without any."""
    calls = turn.get("tool_calls", [])
    if isinstance(calls, str) and calls.lstrip().startswith("["):
        calls = _parsed(calls, f"{place}.tool_calls")
    if not isinstance(calls, list):
        raise RowFault(f"{place}.tool_calls is {said(calls)}, a list is due")
    found = [_call(call, f"{place}.tool_calls[{number}]") for number, call in enumerate(calls)]
    if "function_call" in turn:
        found.append(_call(turn["function_call"], f"{place}.function_call"))
    return found


def text_call(text: str, place: str) -> list[dict[str, Any]]:
    """The calls in the text of a ShareGPT `function_call`: one object with name and arguments, or a list."""
    value = _parsed(text, place)
    return [_call(call, place) for call in (value if isinstance(value, list) else [value])]


def _call(call: Any, place: str) -> dict[str, Any]:
    """{"type": "function", "function": {"name", "arguments"}}; arguments as an object, never as text: a
    template would quote the text once more.
    """
    function = call.get("function") if isinstance(call, dict) and call.get("function") else call
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise RowFault(f"{place} is {said(call)}, a function with a name is due")
    arguments = function.get("arguments")
    if isinstance(arguments, str) and arguments.strip():
        arguments = _parsed(arguments, f"{place}.arguments")
    arguments = {} if arguments is None or arguments == "" else arguments
    if not isinstance(arguments, dict):
        raise RowFault(f"{place}.arguments is {said(arguments)}, an object is due")
    kept = {"id": call["id"]} if isinstance(call.get("id"), str) else {}
    return kept | {"type": "function", "function": {"name": function["name"], "arguments": arguments}}


def unrendered(
    render: Callable[..., str], messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None, whole: str
) -> str:
    """Which of tools, tool calls and reasoning a chat template leaves out, as a reason; empty where none.

    A template that knows no tools drops them without a word, and the model would learn other text than the
    row holds. `render`: messages and tools to text; `whole`: what it gives for these.
    """
    if tools and render(messages, None) == whole:
        return "the chat template leaves out the row's tools"
    for key, kept in (("tool_calls", []), ("reasoning_content", messages[:-1])):
        # Templates leave out the reasoning of earlier answers on purpose.
        bare = [*kept, *_without(messages[len(kept) :], key)]
        if bare != messages and render(bare, tools) == whole:
            return f"the chat template leaves out {key}"
    return ""


def _without(messages: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    return [{name: value for name, value in message.items() if name != key} for message in messages]
