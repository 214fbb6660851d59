"""The turns of a conversation: each as the chat template takes it, and their order."""

from __future__ import annotations

from typing import Any

from train.data.tools import RowFault, listed, said, text_call, tool_calls

ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "function_call": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
}
"""What rows call a role -> what the chat template calls it. `function_call`: its text is the call."""
AFTER = {
    "user": (None, "assistant"),
    "assistant": ("user", "tool"),
    "tool": ("assistant", "tool"),
}
"""Role -> what may stand before it, system messages aside; a tool's result needs a call before it."""
READ_KEYS = frozenset(
    {"role", "from", "content", "value", "tool_calls", "function_call", "tool_call_id", "name"}
    | {"reasoning_content"}
)
_KEPT = ("tool_call_id", "name", "reasoning_content")


def read_turns(row: dict[str, Any], field: str, ignored: set[str]) -> list[dict[str, Any]]:
    """The messages of a row's list; keys of turns that nothing reads are added to `ignored`."""
    turns = listed(row, field)
    if not turns:
        raise RowFault(f"field {field!r} is empty")
    return [_turn(turn, f"{field}[{place}]", ignored) for place, turn in enumerate(turns)]


def _turn(turn: Any, place: str, ignored: set[str]) -> dict[str, Any]:
    if not isinstance(turn, dict):
        raise RowFault(f"{place} is {said(turn)}, an object with role and content is due")
    given = {key: value for key, value in turn.items() if value is not None}
    role_key, text_key = ("from", "value") if "from" in given else ("role", "content")
    name = given.get(role_key)
    role = ROLES.get(name) if isinstance(name, str) else None
    if role is None:
        problem = "is missing" if name is None else f"is {said(name)}"
        raise RowFault(f"{place}.{role_key} {problem}; the roles are {', '.join(ROLES)}")
    for switch in ("weight", "loss"):
        if switch in given and not given[switch]:
            raise RowFault(f"{place}.{switch} is {given[switch]!r}: turns are not left out by row; remove it")
    ignored.update(f"{place.partition('[')[0]}[].{key}" for key in given.keys() - READ_KEYS)
    message: dict[str, Any] = {"role": role, "content": _content(given.get(text_key), f"{place}.{text_key}")}
    if name == "function_call":
        calls, message["content"] = text_call(message["content"], f"{place}.{text_key}"), ""
    else:
        calls = tool_calls(given, place)
    if calls and role != "assistant":
        raise RowFault(f"{place} has tool_calls, and only the assistant may call tools")
    _check_full(message, text_key in given, bool(calls), f"{place}.{text_key}")
    message |= {"tool_calls": calls} if calls else {}
    return message | {key: text(given[key], f"{place}.{key}") for key in _KEPT if key in given}


def _check_full(message: dict[str, Any], is_given: bool, has_calls: bool, place: str) -> None:
    """An answer may be empty beside a call, a tool's result and a system message may be empty text."""
    if not is_given and not has_calls and message["role"] != "tool":
        raise RowFault(f"{place} is missing or null")
    if message["role"] in ("user", "assistant") and not message["content"].strip() and not has_calls:
        raise RowFault(f"{place} is empty")


def _content(value: Any, place: str) -> str:
    """Text as it is, or the texts of a list of parts, one after the other; null is no text."""
    if isinstance(value, list):
        return "".join(_part(part, f"{place}[{number}]") for number, part in enumerate(value))
    return "" if value is None else text(value, place)


def _part(part: Any, place: str) -> str:
    if not isinstance(part, dict):
        raise RowFault(f"{place} is {said(part)}, a part such as {{'type': 'text', 'text': ...}} is due")
    given = {key: value for key, value in part.items() if value is not None}
    kind = given.get("type") or next((key for key in given if key != "type"), "nothing")
    if kind not in ("text", "input_text", "output_text"):
        raise RowFault(f"{place} is a part of type {kind!r}: only text is read so far")
    if "text" not in given:
        raise RowFault(f"{place}.text is missing or null")
    return text(given["text"], f"{place}.text")


def text(value: Any, place: str) -> str:
    """A value that is due as text."""
    if not isinstance(value, str):
        raise RowFault(f"{place} is {said(value)}, text is due")
    return value


def check_order(messages: list[dict[str, Any]], field: str) -> None:
    """RowFault where turns do not follow each other as in a conversation, or where there is no answer."""
    before: dict[str, Any] = {"role": None}
    for place, message in enumerate(messages):
        role = message["role"]
        if role == "system":
            continue
        if before["role"] not in AFTER[role]:
            follows = "opens the conversation" if before["role"] is None else f"follows {before['role']}"
            raise RowFault(f"{field}: message {place + 1}: {role} {follows}")
        if role == "tool" and before["role"] == "assistant" and "tool_calls" not in before:
            raise RowFault(
                f"{field}: message {place + 1}: a tool's result follows an answer that called none"
            )
        before = message
    if messages[-1]["role"] != "assistant":
        raise RowFault(f"{field}: ends with {messages[-1]['role']}: there is no answer to learn")
