"""The fields of a turn that a chat template shows to the model.

A template ignores unknown fields. So each field is changed, and the chat is rendered again: if the
text stays the same, the model never sees the field.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from zerotools.core.errors import BadFile
from zerotools.jobs.datafiles.conversations import Conversation, Turn
from zerotools.jobs.tables.data import TURN_FIELDS
from zerotoolsd.trainer.data.encoding.answers import PROBE, REASONING

CONTENT, CALLS = "content", "tool_calls"
TEXTS = (CONTENT, *REASONING)
Key = tuple[str, str, int]
"""Role, field and number of calls, two standing for more: a template may show only the first."""


class TurnFields:
    """Compares the fields of turns with the template's text.

    `TURN_FIELDS` are read and learned by the model: one that the template leaves out is refused,
    unless it is `accepted`. Other fields, such as a date, are only named.
    """

    def __init__(self, template: str, accepted: Collection[str]) -> None:
        self._template, self._accepted = template, accepted
        self._shown: set[Key] = set()
        self._left_out: set[Key] = set()

    def are_shown(self, turns: Sequence[Turn], roles: Collection[str]) -> bool:
        """Return whether `turns` have only texts, of roles that are known to be shown."""
        return all((role, CONTENT, 0) in self._shown for role in roles) and all(
            len(turn) == 2 and turn.get(CONTENT) for turn in turns
        )

    def left_out(
        self, chat: Conversation, turns: Sequence[Turn], render: Callable[[Sequence[Turn]], str]
    ) -> tuple[str, ...]:
        """Return the names of the fields of `turns` that the text of `render` does not have.

        Raises:
            BadFile: one of them is read or learned by the model, and is not accepted.
        """
        whole: str | None = None
        names: dict[str, None] = {}
        for number, turn in enumerate(turns):
            calls = min(2, len(turn.get(CALLS) or ()))
            for name, changed in _changes(turn):
                key = (turn["role"], name, calls)
                if key in self._shown:
                    continue
                if key not in self._left_out:
                    whole = render(turns) if whole is None else whole
                    others = [*turns[:number], changed, *turns[number + 1 :]]
                    if _differs(render, others, whole) or self._is_shown_last(
                        render, turns[: number + 1], changed
                    ):
                        self._shown.add(key)
                        continue
                    if not self._is_said_elsewhere(turn, name, calls):
                        self._refuse(chat, number, turn, name)
                    self._left_out.add(key)
                names[name] = None
        return tuple(names)

    def _is_shown_last(
        self, render: Callable[[Sequence[Turn]], str], turns: Sequence[Turn], changed: Turn
    ) -> bool:
        """Return whether the last turn shows the field; many templates show thoughts only there.

        Texts that they leave out of earlier turns are counted with the answers.
        """
        try:
            whole = render(turns)
        except BadFile:  # it does not take a chat that ends here
            return True
        return _differs(render, [*turns[:-1], changed], whole)

    def _is_said_elsewhere(self, turn: Turn, name: str, calls: int) -> bool:
        """Return whether the turn has the same thoughts under another shown name; some data repeats
        them."""
        return name in REASONING and any(
            other != name
            and turn.get(other) == turn[name]
            and (turn["role"], other, calls) in self._shown
            for other in REASONING
        )

    def _refuse(self, chat: Conversation, number: int, turn: Turn, name: str) -> None:
        field = name.partition(" ")[0]
        if field not in TURN_FIELDS or field in self._accepted:
            return
        where = f"{chat.place}: turn {number + 1}"
        if field == CONTENT and not turn.get(CALLS):
            what = f'has the role "{turn["role"]}", which'
        else:
            what = f"has {name}, which"
        raise BadFile(
            f"{where} {what} the chat template of {self._template} leaves out; use a template "
            "that shows it, remove such turns from the data, or train without it by setting "
            f"data.ignore_fields = {json.dumps([field])}"
        )


def _differs(render: Callable[[Sequence[Turn]], str], turns: Sequence[Turn], before: str) -> bool:
    try:
        return render(turns) != before
    except BadFile:  # a template that rejects the change has read it
        return True


def _changes(turn: Turn) -> Iterator[tuple[str, Turn]]:
    """Yield each non-empty field of `turn`, with the turn in which it is changed."""
    if turn.get(CONTENT) or not turn.get(CALLS):
        yield CONTENT, {**turn, CONTENT: PROBE}
    if turn.get(CALLS):
        yield from _changed_calls(turn)
    for name, value in turn.items():
        if name not in ("role", CONTENT, CALLS) and value not in (None, "", [], {}):
            yield name, {**turn, name: PROBE}


def _changed_calls(turn: Turn) -> Iterator[tuple[str, Turn]]:
    *others, last = turn[CALLS]
    function: Mapping[str, Any] = last["function"]
    changes = {CALLS: {**last, "function": {**function, "name": PROBE}}}
    with suppress(TypeError):  # arguments that are not an object
        arguments = {**function["arguments"], PROBE: PROBE}
        changed = {**last, "function": {**function, "arguments": arguments}}
        changes[f"{CALLS} with arguments"] = changed
    if last.get("id"):
        changes["id of tool_calls"] = {**last, "id": PROBE}
    for name, call in changes.items():
        yield name, {**turn, CALLS: [*others, call]}
