"""Renders chats with a tokenizer's chat template, and finds the positions of the answers in the
text.

If the template marks the answers itself, with `{% generation %}`, these marks are used. Otherwise
`find_answers` finds the answers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from zerotools.core.errors import BadFile, BadRequest, ZerotoolsError
from zerotools.jobs.datafiles.conversations import ASSISTANT, Conversation, Turn
from zerotoolsd.trainer.data.encoding.find_answers import (
    TEXTS,
    AnswerEnd,
    Answers,
    Span,
    TurnFields,
)

Found = TypeVar("Found")
Shape = tuple[tuple[str, ...], tuple[bool, ...]]
"""The roles of a chat's turns, and, for each turn, whether the model learns it."""
_GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")


class ChatTemplate:
    """Renders chats with the chat template of a tokenizer.

    Some templates put an end token after every answer except the last answer of a chat. If
    `ends_last` is True, this token is also added after the last answer (False for jobs of version
    0.2). A field of a turn that the template leaves out is an error, unless `ignored` contains its
    name.
    """

    def __init__(
        self, tokenizer: Any, *, ends_last: bool = True, ignored: Collection[str] = ()
    ) -> None:
        self._tokenizer = tokenizer
        self._ends_last = ends_last
        self._name = tokenizer.name_or_path
        self._fields = TurnFields(self._name, ignored)
        self._ends: AnswerEnd | None = None
        self._calls_as_text = False
        self._outlines: dict[Shape, ChatOutline | None] = {}

    def rendered_together(self, chats: Sequence[Conversation]) -> list[RenderedChat]:
        """Render all `chats`, and return the same results as `rendered` for each chat.

        Raises the same errors as `rendered`. It is faster than `rendered` for chats that have only
        text.
        """
        outlines = [*map(self._outline, chats)]
        together = [
            [*chat.turns[: len(outline.roles)]]
            for chat, outline in zip(chats, outlines, strict=True)
            if outline is not None
        ]
        try:
            texts = iter(self._tokenizer.apply_chat_template(together, tokenize=False))
        except Exception:  # a template error on one of them: `rendered` names it
            return [*map(self.rendered, chats)]
        filled = (
            None if outline is None else outline.filled(chat.turns, next(texts))
            for chat, outline in zip(chats, outlines, strict=True)
        )
        return [found or self.rendered(chat) for chat, found in zip(chats, filled, strict=True)]

    def _outline(self, chat: Conversation) -> ChatOutline | None:
        """Return the fixed text that the template puts around the turns of `chat` and of all chats
        with the same roles.

        Returns None if the template has no such fixed text, if the chat has tools or fields that
        are not text, or if no earlier chat has shown yet that the template renders the text of
        these roles.
        """
        roles = tuple(turn["role"] for turn in chat.turns)
        if chat.tools or not self._fields.are_shown(chat.turns, roles):
            return None
        shape = (roles, chat.learned)
        if shape not in self._outlines:
            last = max(number for number, learned in enumerate(chat.learned) if learned)
            probes = [{"role": role, "content": probe_text(n)} for n, role in enumerate(roles)]
            empty = Conversation(chat.place, tuple(probes), None, chat.learned)
            try:
                found = self.rendered(empty)
                bare = self._render(empty, probes[: last + 1])
            except ZerotoolsError:
                self._outlines[shape] = None
            else:
                tail = len(found.text) - len(bare)
                self._outlines[shape] = outline_of(found, roles[: last + 1], tail)
        return self._outlines[shape]

    def rendered(self, chat: Conversation) -> RenderedChat:
        """Render the turns of `chat` up to its last learned answer, and find the learned answers.

        Raises:
            BadFile: the template rejects the turns, or leaves out a field. The message names the
                place of the chat in the data.
            BadRequest: the template does not support tools, or an answer cannot be found in the
                rendered text.
        """
        last = max(number for number, learned in enumerate(chat.learned) if learned)
        turns, learned = chat.turns[: last + 1], chat.learned[: last + 1]
        source = self._tokenizer.get_chat_template(None, tools=chat.tools)
        self._check_tools(chat, source)
        render = partial(self._render, chat)
        left_out = self._fields.find_ignored(chat, turns, render)
        if _GENERATION.search(source):
            return replace(self._as_marked(chat, turns, learned, source), left_out=left_out)
        self._ends = self._ends or AnswerEnd(render, self._special())
        whole = render(turns) + (self._ends.following if self._ends_last else "")
        answers = Answers(render, self._ends, turns, whole)
        spans: list[Span] = []
        for number in (number for number, is_learned in enumerate(learned) if is_learned):
            span = answers.span(number)
            if span is None or (spans and span[0] < spans[-1][1]):
                raise self._untold(chat, number)
            spans.append(span)
        found = self._found(whole, spans, spans[-1][0], turns, learned)
        return replace(found, left_out=left_out)

    def _special(self) -> Iterator[str]:
        return (token.content for token in special_tokens(self._tokenizer).values())

    def _untold(self, chat: Conversation, number: int) -> BadRequest:
        return BadRequest(
            f"{chat.place}: the chat template of {self._name} renders turn {number + 1} "
            "differently if its text or later turns change, so zerotools cannot find its tokens: "
            "mark answers with {% generation %} in the template, or try "
            'data.loss_on = "last" (for examples of a prompt and a response: '
            'data.chat_template = "off")'
        )

    def _found(
        self,
        text: str,
        spans: Sequence[Span],
        split: int,
        turns: Sequence[Turn],
        learned: Sequence[bool],
    ) -> RenderedChat:
        parts = "".join(text[begin:end] for begin, end in spans)
        said = [turn for turn, is_learned in zip(turns, learned, strict=True) if is_learned]
        texts = [turn.get(name) for turn in said for name in TEXTS]
        is_changed = any(isinstance(each, str) and each.strip() not in parts for each in texts)
        return RenderedChat(text, tuple(spans), split, is_changed)

    def _check_tools(self, chat: Conversation, source: str) -> None:
        if chat.tools and "tools" not in source:
            raise BadRequest(
                f"{chat.place}: has tools, but the chat template of {self._name} does not show "
                "tools to the model: remove them from the data, or use a template that shows "
                "tools"
            )

    def _as_marked(
        self, chat: Conversation, turns: Sequence[Turn], learned: Sequence[bool], source: str
    ) -> RenderedChat:
        from transformers.utils.chat_template_utils import render_jinja_template

        def render(turns: list[Turn]) -> tuple[str, list[Span]]:
            [text], [marked] = render_jinja_template(
                conversations=[turns],
                tools=chat.tools,
                chat_template=source,
                return_assistant_tokens_mask=True,
                **self._tokenizer.special_tokens_map,
            )
            return text, marked

        text, marked = self._tried(render, chat, turns)
        answers = [
            is_learned
            for turn, is_learned in zip(turns, learned, strict=True)
            if turn["role"] == ASSISTANT
        ]
        has_more = len(marked) > len(answers)
        if len(marked) < len(answers) or (has_more and not all(answers)):
            raise BadRequest(
                f"{chat.place}: the chat template of {self._name} marks {len(marked)} parts "
                f"with {{% generation %}}, but there are {len(answers)} assistant turns "
                f"({sum(answers)} of them count in the loss): mark each assistant turn once in "
                "the template, or mark none"
            )
        if len(marked) == len(answers):
            marked = [span for span, is_learned in zip(marked, answers, strict=True) if is_learned]
            return self._found(text, marked, marked[-1][0], turns, learned)
        asked = self._render(chat, turns[:-1], asks=True)
        begins = [begin for begin, _ in marked if begin >= len(asked)]
        split = begins[0] if begins and text.startswith(asked) else marked[-1][0]
        return self._found(text, marked, split, turns, learned)

    def _render(self, chat: Conversation, turns: Sequence[Turn], *, asks: bool = False) -> str:
        def render(turns: list[Turn]) -> str:
            text: str = self._tokenizer.apply_chat_template(
                turns, tools=chat.tools, tokenize=False, add_generation_prompt=asks
            )
            return text

        return self._tried(render, chat, turns)

    def _tried(
        self, render: Callable[[list[Turn]], Found], chat: Conversation, turns: Sequence[Turn]
    ) -> Found:
        """Call `render` with `turns` and return its result.

        If this fails, try again with the arguments of tool calls as JSON text.

        Most templates convert the arguments of tool calls to JSON. Some (DeepSeek's) expect
        arguments that are JSON text already.
        """
        try:
            return render([*map(_with_text_calls, turns)] if self._calls_as_text else [*turns])
        except Exception as error:  # whatever a template raises over the turns
            if self._calls_as_text or not any(turn.get("tool_calls") for turn in turns):
                raise _rejected(chat, error) from None
            self._calls_as_text = True
            try:
                return self._tried(render, chat, turns)
            except BadFile:
                self._calls_as_text = False
                raise _rejected(chat, error) from None


def _with_text_calls(turn: Turn) -> Turn:
    if not turn.get("tool_calls"):
        return turn
    calls = [
        {**call, "function": {**call["function"], "arguments": _as_json(call)}}
        for call in turn["tool_calls"]
    ]
    return {**turn, "tool_calls": calls}


def _as_json(call: Mapping[str, Any]) -> str:
    return json.dumps(call["function"].get("arguments"), ensure_ascii=False)


def special_tokens(tokenizer: Any) -> dict[int, Any]:
    """Return the special tokens of a tokenizer: token id -> token."""
    known = tokenizer.added_tokens_decoder
    return {number: token for number, token in known.items() if token.special}


def _rejected(chat: Conversation, error: Exception) -> BadFile:
    line = str(error).strip().splitlines()[0] if str(error).strip() else "it failed"
    return BadFile(f"{chat.place}: the tokenizer's chat template rejects it: {line}")


@dataclass(frozen=True)
class RenderedChat:
    """The rendered text of a chat. `spans` are the positions (begin, end) of the learned answers,
    in order.

    `split` is the position at which the last answer begins. This answer may have several spans.
    `is_changed` is True if the text does not contain all text of the answers in the data.
    `left_out` has the names of fields of turns that the text does not show.
    """

    text: str
    spans: tuple[Span, ...]
    split: int
    is_changed: bool = False
    left_out: tuple[str, ...] = ()


Point = tuple[int, int]
"""A position in a rendered chat: (the number of turn texts before it, the number of characters of
the fixed text before it).
"""


@dataclass(frozen=True)
class ChatOutline:
    """The fixed text that a template puts around the texts of turns with these `roles`.

    The fixed text is found once, by rendering a chat of probe texts. `around` has its parts:
    before, between and after the texts of the turns. A later chat with the same roles is rendered,
    and fits if exactly these parts are around its own texts. `points` are the positions, relative
    to the texts of the turns, at which its answers begin and end. The last `tail` characters of the
    fixed text are not from the template. They are added after the last answer.
    """

    roles: tuple[str, ...]
    around: tuple[str, ...]
    points: tuple[Point, ...]
    tail: int

    def filled(self, turns: Sequence[Turn], text: str) -> RenderedChat | None:
        """Return the chat of `turns`, rendered as `text`, with the positions of its answers.

        Returns None if `text` does not fit this outline.
        """
        texts = [turn["content"] for turn in turns[: len(self.roles)]]
        text += self.around[-1][len(self.around[-1]) - self.tail :]
        if self._joined(texts) != text:
            texts = [each.strip() for each in texts]
            if self._joined(texts) != text:
                return None
        before = [0]
        for each in texts:
            before.append(before[-1] + len(each))
        *bounds, split = (before[count] + bare for count, bare in self.points)
        return RenderedChat(text, tuple(zip(bounds[::2], bounds[1::2], strict=True)), split)

    def _joined(self, texts: Sequence[str]) -> str:
        parts = [self.around[0]]
        for text, around in zip(texts, self.around[1:], strict=True):
            parts += (text, around)
        return "".join(parts)


def probe_text(number: int) -> str:
    """Return the probe text for turn `number`: a text that no template changes."""
    return f"\u2042{number}\u2042"


def outline_of(chat: RenderedChat, roles: tuple[str, ...], tail: int) -> ChatOutline | None:
    """Return the outline that follows from `chat`, a rendered chat of probe texts.

    Returns None if the probe texts are not in order, or if an answer begins or ends inside a probe
    text.
    """
    around: list[str] = []
    rest = chat.text
    for number in range(len(roles)):
        before, found, rest = rest.partition(probe_text(number))
        if not found:
            return None
        around.append(before)
    around.append(rest)
    if chat.is_changed or chat.left_out or "\u2042" in "".join(around) or tail > len(rest):
        return None
    points = [_point(chat.text, place) for span in chat.spans for place in span]
    points.append(_point(chat.text, chat.split))
    found_points = [point for point in points if point is not None]
    if len(found_points) < len(points):
        return None
    return ChatOutline(roles, tuple(around), tuple(found_points), tail)


def _point(text: str, place: int) -> Point | None:
    """Convert the position `place` in `text` to a `Point`: the number of probe texts before it, and
    the number of other characters before it.

    Returns None if the position is inside a probe text.
    """
    marks = text[:place].count("\u2042")
    if marks % 2:
        return None
    count = marks // 2
    return count, place - sum(len(probe_text(number)) for number in range(count))
