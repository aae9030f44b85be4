"""The turns of a chat, as the tokenizer's template renders them, and where its answers lie.

What the template makes of the turns before an answer, with its header of one, is asked; what it
adds for the answer, with the end that it puts there, is the answer. A template that marks answers
itself, with `{% generation %}`, is taken at its word.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from zerotools.core.errors import BadFile, BadRequest
from zerotools.jobs.datafiles.conversations import ASSISTANT, Conversation, Turn

PROBE = "\u2042probe\u2042"
"""A text that no template changes."""
_GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
Span = tuple[int, int]


@dataclass(frozen=True)
class RenderedChat:
    """The text of a chat, and where in it the answers lie that are learned from, in order; the last
    one begins at `split`."""

    text: str
    spans: tuple[Span, ...]

    @property
    def split(self) -> int:
        """Where the last answer begins."""
        return self.spans[-1][0]


class ChatTemplate:
    """The chat template of a tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._name = tokenizer.name_or_path
        self._shown: set[str] = set()
        self._closing: str | None = None

    def rendered(self, chat: Conversation) -> RenderedChat:
        """The chat up to its last answer that is learned from.

        Raises:
            BadFile: the template rejects the turns, or leaves one out; their place is named.
            BadRequest: the template has no place for tools, or an answer cannot be told from what
                stands around it.
        """
        last = max(number for number, learned in enumerate(chat.learned) if learned)
        turns, learned = chat.turns[: last + 1], chat.learned[: last + 1]
        source = self._tokenizer.get_chat_template(None, tools=chat.tools)
        self._check_shown(chat, turns, source)
        if _GENERATION.search(source):
            return self._as_marked(chat, turns, learned, source)
        whole = self._render(chat, turns)
        spans = [
            self._span(chat, whole, turns, number)
            for number, is_learned in enumerate(learned)
            if is_learned
        ]
        return RenderedChat(whole, tuple(spans))

    def _check_shown(self, chat: Conversation, turns: Sequence[Turn], source: str) -> None:
        """Many templates pass over what they do not know, without a word."""
        if chat.tools and "tools" not in source:
            raise BadRequest(
                f"{chat.place}: has tools, and the chat template of {self._name} shows none to "
                "the model: take them out of the data, or take a template with tools"
            )
        for number, turn in enumerate(turns):
            if turn["role"] in self._shown or turn.get("tool_calls"):
                continue
            other = [*turns]
            other[number] = {**turn, "content": PROBE}
            if PROBE not in self._render(chat, other):
                raise BadFile(
                    f'{chat.place}: turn {number + 1} has the role "{turn["role"]}", which the '
                    f"chat template of {self._name} leaves out: take a template that has it, or "
                    "take such turns out of the data"
                )
            self._shown.add(turn["role"])

    def _as_marked(
        self, chat: Conversation, turns: Sequence[Turn], learned: Sequence[bool], source: str
    ) -> RenderedChat:
        from transformers.utils.chat_template_utils import render_jinja_template

        try:
            [text], [marked] = render_jinja_template(
                conversations=[list(turns)],
                tools=chat.tools,
                chat_template=source,
                return_assistant_tokens_mask=True,
                **self._tokenizer.special_tokens_map,
            )
        except Exception as error:  # whatever a template raises over the turns
            raise _rejected(chat, error) from None
        answers = [
            is_learned
            for turn, is_learned in zip(turns, learned, strict=True)
            if turn["role"] == ASSISTANT
        ]
        if len(marked) != len(answers):
            raise BadRequest(
                f"{chat.place}: the chat template of {self._name} marks {len(marked)} parts with "
                f"{{% generation %}}, and there are {len(answers)} assistant turns: mark each of "
                "them in the template, or none"
            )
        chosen = [span for span, is_learned in zip(marked, answers, strict=True) if is_learned]
        return RenderedChat(text, tuple(chosen))

    def _span(self, chat: Conversation, whole: str, turns: Sequence[Turn], number: int) -> Span:
        is_last = number == len(turns) - 1
        asked = self._render(chat, turns[:number], asks=True)
        if whole.startswith(asked):
            begin: int | None = len(asked)
        else:
            begin = None if is_last else self._begin_by_probe(chat, whole, turns, number)
        end = len(whole) if is_last else self._end(chat, whole, turns, number, begin or 0)
        if begin is None and is_last:
            raise BadRequest(
                f"the chat template of {self._name} renders a prompt "
                "differently when its response follows: set data.chat_template = "
                '"off", or fix the template'
            )
        if begin is None or end is None:
            raise BadRequest(
                f"{chat.place}: the chat template of {self._name} renders turn {number + 1} "
                "differently when others follow, so that its tokens cannot be told: set "
                'data.loss_on = "last", or mark answers with {% generation %} in the template'
            )
        return begin, end

    def _begin_by_probe(
        self, chat: Conversation, whole: str, turns: Sequence[Turn], number: int
    ) -> int | None:
        """Where an answer's own text begins: before it, another answer changes nothing."""
        other = [*turns]
        other[number] = {**turns[number], "content": PROBE}
        before, found, _ = self._render(chat, other).partition(PROBE)
        return len(before) if found and whole.startswith(before) else None

    def _end(
        self, chat: Conversation, whole: str, turns: Sequence[Turn], number: int, begin: int
    ) -> int | None:
        closing = self._closing_of(chat)
        if closing and not turns[number].get("tool_calls"):
            at = whole.find(closing, begin)
            if at >= 0:
                return at + len(closing)
        done = self._render(chat, turns[: number + 1])
        return len(done) if whole.startswith(done) else None

    def _closing_of(self, chat: Conversation) -> str:
        """What the template puts after an answer; empty where that has no special token, by which
        alone it is found again."""
        if self._closing is None:
            turns = ({"role": "user", "content": "a"}, {"role": ASSISTANT, "content": PROBE})
            closing = self._render(chat, turns).partition(PROBE)[2]
            special = (token.content for token in special_tokens(self._tokenizer).values())
            self._closing = closing if any(text in closing for text in special) else ""
        return self._closing

    def _render(self, chat: Conversation, turns: Sequence[Turn], *, asks: bool = False) -> str:
        try:
            text: str = self._tokenizer.apply_chat_template(
                list(turns), tools=chat.tools, tokenize=False, add_generation_prompt=asks
            )
        except Exception as error:  # whatever a template raises over the turns
            raise _rejected(chat, error) from None
        return text


def special_tokens(tokenizer: Any) -> dict[int, Any]:
    """The special tokens by their ids."""
    known = tokenizer.added_tokens_decoder
    return {number: token for number, token in known.items() if token.special}


def _rejected(chat: Conversation, error: Exception) -> BadFile:
    line = str(error).strip().splitlines()[0] if str(error).strip() else "it failed"
    return BadFile(f"{chat.place}: the tokenizer's chat template rejects it: {line}")
