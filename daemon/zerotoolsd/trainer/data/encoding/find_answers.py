"""Finds the answers in a chat that a template has rendered, and the fields of turns that the
template ignores.

To find an answer, the chat is rendered again with fewer turns, or with a probe text in place of the
text of a turn. Each answer has a header, in this example `<|assistant|>`. If a chat ends with a
question, the template can add this header at the end, so that the model answers. The answer begins
after its header, and ends with the text that the template puts after an answer:

    <|user|>a<|end|><|assistant|>b<|end|><|user|>c<|end|><|assistant|>d<|end|>
                                 ~~~~~~~                              ~~~~~~~

Templates of reasoning models are harder, because they leave out the reasoning of earlier answers.
So the rendered text of the turns up to an answer is not always a prefix of the rendered whole chat.
Also, the header may open a reasoning block (`<think>`) that the answer in the data does not have.
In these cases, the text of a turn is replaced by a probe text, which shows where the answer is.

Some templates put nothing after an answer. Then the model learns the token that begins the next
turn (GLM: `<|user|>`), and this token is added after the last answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from typing import Any, Protocol

from zerotools.core.errors import BadFile
from zerotools.jobs.datafiles.conversations import ASSISTANT, SYSTEM, Conversation, Turn
from zerotools.jobs.jobfile_tables.data import TURN_FIELDS

PROBE = "\u2042probe\u2042"
"""A text that no template changes. It replaces the text of a turn to find its position."""
REASONING = ("reasoning_content", "reasoning", "thinking")
"""Field names for the reasoning before an answer. Different templates use different names."""
Span = tuple[int, int]


class Render(Protocol):
    """Renders turns with the chat template.

    If `asks` is True, the text ends with the header of an answer.
    """

    def __call__(self, turns: Sequence[Turn], *, asks: bool = False) -> str: ...


class AnswerEnd:
    """The text that a template puts after an answer.

    `closing` is the text after the last answer of a chat, if the text after other answers begins
    with it. Otherwise, as in gpt-oss (`<|return|>` instead of `<|end|>`), it is the text after
    other answers, up to and including the first special token. If the text after the last answer
    has no special token, `closing` is empty, and `following` is the special token with which the
    next turn begins, or empty.
    """

    def __init__(self, render: Render, special: Iterable[str]) -> None:
        self.special = tuple(special)
        turns: list[Turn] = [
            {"role": "user", "content": "a"},
            {"role": ASSISTANT, "content": PROBE},
        ]
        last = _behind_probe(render, turns)
        other = _behind_probe(render, [*turns, turns[0]])
        if last is None or other is None:  # it is unknown
            self.closing = self.following = ""
            return
        first = self._with_special(other)
        is_closed = any(text in last for text in self.special)
        self.closing = (last if other.startswith(last) else first) if is_closed else ""
        self.following = first.strip() if not is_closed else ""

    def _with_special(self, text: str) -> str:
        """Return `text` up to and including its first special token; empty if it has none."""
        ends = (text.find(each) + len(each) for each in self.special if each in text)
        return text[: min(ends, default=0)]

    def last_special(self, text: str) -> int | None:
        """Return the position after the last special token in `text`; None if it has none."""
        ends = (text.rfind(each) + len(each) for each in self.special if each in text)
        return max(ends, default=None)


class Answers:
    """Finds the answers in `whole`, the rendered text of `turns`.

    The last turn must be an answer.
    """

    def __init__(self, render: Render, ends: AnswerEnd, turns: Sequence[Turn], whole: str) -> None:
        self._render, self._ends, self._turns, self.whole = render, ends, turns, whole

    def span(self, number: int) -> Span | None:
        """Return the answer of turn `number` as (begin, end) in `whole`. The closing text that the
        template puts after the answer is included.

        Returns None if the answer cannot be found.
        """
        begin = self._begin(number)
        if begin is None:
            return None
        is_last = number == len(self._turns) - 1
        end = len(self.whole) if is_last else self._end(number, begin)
        return None if end is None or end <= begin else (begin, end)

    def _begin(self, number: int) -> int | None:
        before = self._turns[:number]
        asked = self._part(before, asks=True)
        if asked is not None and self.whole.startswith(asked):
            return len(asked)
        if asked is None or number < len(self._turns) - 1:
            head, found, _ = self._render(self._with_probe(number)).partition(PROBE)
            if found and self.whole.startswith(head) and not self._has_thoughts(number, head):
                return len(head)
        bare = self._part((*before, {"role": ASSISTANT, "content": PROBE}))
        base = self._part(before)
        if asked is None or bare is None or base is None:
            return None
        return self._begin_in_header(base, asked, bare)

    def _has_thoughts(self, number: int, head: str) -> bool:
        """Return whether `head`, the text before an answer, contains the reasoning of this answer.

        The reasoning belongs to the learned text, so such a `head` is too long.
        """
        texts = (self._turns[number].get(name) for name in REASONING)
        return any(isinstance(text, str) and text.strip() in head for text in texts if text)

    def _part(self, turns: Sequence[Turn], *, asks: bool = False) -> str | None:
        """Render `turns`, a part of the chat.

        Return None if the template rejects this part. For example, some templates require a user
        turn in each chat.
        """
        try:
            return self._render(turns, asks=asks) if turns else None
        except BadFile:
            return None

    def _begin_in_header(self, base: str, asked: str, bare: str) -> int | None:
        """Return where an answer without reasoning begins, if the template's header of an answer
        opens a reasoning block.

        `base` is the text before the header. `asked` is `base` and the header. `bare` is the same
        chat with an answer that has no reasoning. The answer begins at the first character in which
        `asked` and `bare` differ. Returns None if the answer cannot be located.
        """
        header = _common_prefix(asked, bare)
        rest = asked[len(header) :].strip()
        is_elsewhere = bool(rest) and rest in bare[len(header) :]
        if not self.whole.startswith(header):
            header = _common_prefix(asked, self.whole)
        if is_elsewhere or not (asked.startswith(base) and header.startswith(base)):
            return None
        return len(header)

    def _end(self, number: int, begin: int) -> int | None:
        calls = bool(self._turns[number].get("tool_calls"))
        closing = self._ends.closing
        if closing and not calls:
            at = self.whole.find(closing, self._behind_text(number, begin))
            if at >= 0:
                return at + len(closing)
        done = self._part(self._turns[: number + 1])
        if done is not None and self.whole.startswith(done):
            return len(done) + (self._following(len(done)) if self._ends.following else 0)
        return self._end_before_next(number, begin)

    def _behind_text(self, number: int, begin: int) -> int:
        """Return the position from which to search for the text that closes the answer.

        This is usually `begin`, where the answer begins. If the answer's own text contains the
        closing text, it is the end of the answer's own text.
        """
        text = self._turns[number]["content"].strip()
        at = self.whole.find(text, begin) if self._ends.closing in text else -1
        is_first = 0 <= at <= self.whole.find(self._ends.closing, begin)
        return at + len(text) if is_first else begin

    def _following(self, end: int) -> int:
        """Return the length of the special token at position `end` of the text; 0 if none
        exists.
        """
        found = (len(each) for each in self._ends.special if self.whole.startswith(each, end))
        return max(found, default=0)

    def _end_before_next(self, number: int, begin: int) -> int | None:
        """Return the end of the answer of turn `number`, which begins at `begin`; None if it
        cannot be found.

        The answer ends after the last closing text that comes before the text of the next turn.
        """
        head, found, _ = self._render(self._with_probe(number + 1)).partition(PROBE)
        if not found or not self.whole.startswith(head) or len(head) < begin:
            return None
        part, closing = head[begin:], self._ends.closing
        if not closing:
            end = self._ends.last_special(part) if self._ends.following else None
            return None if end is None else begin + end
        at = part.rfind(closing)
        return None if at < 0 else begin + at + len(closing)

    def _with_probe(self, number: int) -> list[Turn]:
        turns = [*self._turns]
        turns[number] = {**turns[number], "content": PROBE}
        return turns


def _behind_probe(render: Render, turns: Sequence[Turn]) -> str | None:
    """Render `turns`, and return the text after the probe text; None if the template rejects the
    turns.
    """
    for first in ((), ({"role": SYSTEM, "content": "a"},)):
        with suppress(BadFile):
            return render((*first, *turns)).partition(PROBE)[2]
    return None


def _common_prefix(one: str, other: str) -> str:
    pairs = zip(one, other, strict=False)
    return one[: sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))]


CONTENT, CALLS = "content", "tool_calls"
TEXTS = (CONTENT, *REASONING)
Key = tuple[str, str, int]
"""(Role, field name, number of tool calls), which decide whether a template shows a field.

The number 2 stands for two or more calls, because a template may show only the first call.
"""


class TurnFields:
    """Finds the fields of turns that a template ignores.

    A template ignores unknown fields without an error. To test a field, its value is changed and
    the chat is rendered again. If the rendered text stays the same, the template ignores the field.
    If an ignored field is one of `TURN_FIELDS`, this is an error, unless `accepted` has its name.
    Other ignored fields, such as a date, are only reported.
    """

    def __init__(self, template: str, accepted: Collection[str]) -> None:
        self._template, self._accepted = template, accepted
        self._shown: set[Key] = set()
        self._left_out: set[Key] = set()

    def are_shown(self, turns: Sequence[Turn], roles: Collection[str]) -> bool:
        """Return whether `turns` have no fields other than text, and earlier chats have already
        shown that the template renders the text of each role in `roles`.
        """
        return all((role, CONTENT, 0) in self._shown for role in roles) and all(
            len(turn) == 2 and turn.get(CONTENT) for turn in turns
        )

    def find_ignored(
        self, chat: Conversation, turns: Sequence[Turn], render: Callable[[Sequence[Turn]], str]
    ) -> tuple[str, ...]:
        """Return the names of the fields of `turns` that the text of `render` does not show.

        Raises:
            BadFile: a field of `TURN_FIELDS` is ignored and not accepted.
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
                    if not self._is_shown_elsewhere(turn, name, calls):
                        self._refuse(chat, number, turn, name)
                    self._left_out.add(key)
                names[name] = None
        return tuple(names)

    def _is_shown_last(
        self, render: Callable[[Sequence[Turn]], str], turns: Sequence[Turn], changed: Turn
    ) -> bool:
        """Return whether the template shows a field when the turn with this field is the last turn
        of the chat.

        `changed` is the last turn of `turns` with another value of the field. Many templates show
        reasoning only in the last turn. Such a field is not an ignored field, although earlier
        answers are rendered without their reasoning.
        """
        try:
            whole = render(turns)
        except BadFile:  # it does not take a chat that ends here
            return True
        return _differs(render, [*turns[:-1], changed], whole)

    def _is_shown_elsewhere(self, turn: Turn, name: str, calls: int) -> bool:
        """Return whether the field `name` has reasoning, and the template shows another field with
        the same reasoning.
        """
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
    """For each non-empty field of `turn`, yield its name and a copy of `turn` with another value of
    the field.
    """
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
