"""Read conversations: lists of messages with OpenAI's keys (`role`, `content`) or ShareGPT's keys
(`from`, `value`).

The result has the form that chat templates take.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from zerotools.core.errors import BadFile
from zerotools.jobs.datafiles.record_files import checked_text, kind_in_words, shown_names

ASSISTANT, USER, SYSTEM, TOOL = "assistant", "user", "system", "tool"
ROLES: Mapping[str, str] = {
    **{role: role for role in (SYSTEM, "developer", USER, ASSISTANT, TOOL)},
    **dict.fromkeys(("human",), USER),
    **dict.fromkeys(("gpt", "model", "bot", "chatgpt", "bing", "bard"), ASSISTANT),
    **dict.fromkeys(
        ("observation", "function", "function_response", "tool_response", "ipython"), TOOL
    ),
}
"""The role of a speaker in the data -> the same role in a chat template."""
CALL = "function_call"
"""The role in ShareGPT's files for a turn in which the assistant calls a function, written as
JSON text.
"""
Turn = Mapping[str, Any]


@dataclass(frozen=True)
class Conversation:
    """The messages ("turns") of a chat, and the tools that the assistant could call.

    `learned` has a flag for each turn: true if its tokens count in the loss. This is only possible
    for turns of the assistant.
    """

    place: str
    turns: tuple[Turn, ...]
    tools: list[Any] | None
    learned: tuple[bool, ...]

    @property
    def is_empty(self) -> bool:
        """True if no turn of the conversation counts in the loss."""
        return not any(self.learned)

    @property
    def letters(self) -> int:
        """The approximate length of the conversation, in characters."""
        return sum(len(str(turn.get("content", ""))) for turn in self.turns)

    def with_last_answer(self) -> Conversation:
        """Return a copy of the conversation in which only the last answer counts in the loss."""
        last = max((number for number, said in enumerate(self.learned) if said), default=-1)
        return replace(self, learned=tuple(number == last for number in range(len(self.turns))))


def conversation_of(place: str, turns: Any, system: str, tools: Any) -> Conversation:
    """Convert `turns`, the value of a column in a record, to a conversation.

    `place` is the text for file, line and column in messages. If `system` is not empty, it becomes
    the first turn. A turn of the assistant does not count in the loss if it has neither text nor
    function calls, or has OpenAI's `"weight": 0`.

    Raises:
        BadFile: the value is not a list of turns, a turn is not understood, or no turn is the
            assistant's.
    """
    listed = _list(place, turns, "turns")
    read = [_turn(f"{place}: turn {number}", turn) for number, turn in enumerate(listed, 1)]
    if system:
        read.insert(0, ({"role": SYSTEM, "content": system}, False))
    if not any(turn["role"] == ASSISTANT for turn, _ in read):
        raise BadFile(
            f"{place}: the conversation has no turn of the assistant, so there is nothing to "
            "learn; remove the conversation"
        )
    offered = None if tools in (None, "", []) else _list(f"{place}: the tools", tools, "tools")
    return Conversation(
        place, tuple(turn for turn, _ in read), offered, tuple(said for _, said in read)
    )


def _list(place: str, value: Any, what: str) -> list[Any]:
    if isinstance(value, str):
        value = _from_json(place, value)
    if not isinstance(value, list) or not value:
        found = "is an empty list" if value == [] else f"is {kind_in_words(value)}, not a list"
        raise BadFile(f"{place}: {found} of {what}")
    return value


def _from_json(place: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{place}: must be JSON: {error}") from None


def _turn(place: str, turn: Any) -> tuple[Turn, bool]:
    """Convert one turn to the form that chat templates take.

    Also return whether the turn counts in the loss.
    """
    if not isinstance(turn, Mapping):
        raise BadFile(f"{place} is {kind_in_words(turn)}, not an object")
    names = ("role", "content") if "role" in turn or "from" not in turn else ("from", "value")
    role, content = turn.get(names[0]), turn.get(names[1])
    if role is None:
        raise BadFile(
            f'{place} has no "role" and no "from"; it has {shown_names(turn)}; add one of the two'
        )
    rest = {}
    if turn.keys() != {*names}:  # most turns have nothing else
        known = (*names, "weight")
        rest = {name: each for name, each in turn.items() if name not in known and each is not None}
    if role == CALL:
        return {"role": ASSISTANT, "content": "", "tool_calls": _called(place, content)}, True
    if not isinstance(role, str) or role not in ROLES:
        raise BadFile(
            f"{place} has the role {json.dumps(role, ensure_ascii=False)}, which is not "
            f"supported; use one of {', '.join(ROLES)}"
        )
    text = _content(place, names[1], content)
    if "tool_calls" in rest:
        calls = rest["tool_calls"]
        if not isinstance(calls, list):
            raise BadFile(f'{place}: "tool_calls" is {kind_in_words(calls)}, not a list')
        rest["tool_calls"] = [_with_arguments(place, call) for call in calls]
    says = ROLES[role] == ASSISTANT and bool(text or rest.get("tool_calls"))
    return {**rest, "role": ROLES[role], "content": text}, says and turn.get("weight") != 0


def _content(place: str, name: str, value: Any) -> str:
    if isinstance(value, list):
        return "".join(_part(place, part) for part in value)
    return "" if value is None else checked_text(f'{place}: "{name}"', value)


def _part(place: str, part: Any) -> str:
    """Return the text of one part of a turn.

    In OpenAI's files, the content of a turn may be a list of parts.
    """
    if isinstance(part, Mapping) and part.get("type") == "text":
        return checked_text(f'{place}: "text"', part.get("text"))
    kind = part.get("type") if isinstance(part, Mapping) else kind_in_words(part)
    raise BadFile(
        f"{place} has a part that is not text ({kind}); only text can be trained on; remove the "
        "part"
    )


def _called(place: str, value: Any) -> list[Any]:
    """Return the function calls in a turn of ShareGPT. `value` is one call or a list of calls."""
    calls = _from_json(place, value) if isinstance(value, str) else value
    listed: Sequence[Any] = calls if isinstance(calls, list) else [calls]
    return [_with_arguments(place, {"type": "function", "function": call}) for call in listed]


def _with_arguments(place: str, call: Any) -> dict[str, Any]:
    """Return a function call with its arguments parsed.

    In OpenAI's files the arguments are JSON text, but a chat template itself converts values to
    JSON.
    """
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise BadFile(f'{place} has a tool call without a "name" in its "function"; add the name')
    arguments = function.get("arguments", {})
    if isinstance(arguments, str) and arguments:
        arguments = _from_json(f"{place}: the arguments of {function['name']}", arguments)
    return {**call, "function": {**function, "arguments": arguments or {}}}
