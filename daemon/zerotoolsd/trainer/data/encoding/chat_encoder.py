"""A chat's text as ids, with marks on those of its answers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from zerotools.jobs.datafiles.conversations import Conversation
from zerotools.jobs.datafiles.example_files import Record, as_conversation
from zerotoolsd.trainer.data.encoding.chats import ChatTemplate, special_tokens
from zerotoolsd.trainer.data.encoding.encoded import SAID, Encoded, Encoder, Marked, as_ids, said
from zerotoolsd.trainer.data.encoding.outlines import RenderedChat
from zerotoolsd.trainer.data.encoding.text_ids import LocatedIds
from zerotoolsd.trainer.data.encoding.truncating import Kept, Limits, cut


class ChatEncoder(Encoder):
    """A chat as one text, tokenised as a whole: so a model reads it."""

    def __init__(
        self, tokenizer: Any, limits: Limits, *, all_answers: bool, ignored: Collection[str] = ()
    ) -> None:
        super().__init__(tokenizer)
        self._limits, self._all = limits, all_answers
        self._template = ChatTemplate(tokenizer, ignored=ignored)
        self._special = frozenset(special_tokens(tokenizer))

    def _batch(self, records: Sequence[Record]) -> Iterator[Encoded]:
        chats = self._template.rendered_together([*map(self._learned, records)])
        for record, chat, (marked, split) in zip(records, chats, self._marked(chats), strict=True):
            found = self._cut(record.place, marked[:split], marked[split:])
            if chat.is_changed or chat.left_out:
                found = replace(found, is_changed=chat.is_changed, left_out=chat.left_out)
            yield found

    def _learned(self, record: Record) -> Conversation:
        chat = as_conversation(record)
        return chat if self._all else chat.with_last_answer()

    def _marked(self, chats: Sequence[RenderedChat]) -> Iterator[tuple[Marked, int]]:
        """Return (ids with marks, begin of the last answer) of each chat."""
        if not self._tokenizer.is_fast:
            return map(self._in_pieces, chats)
        return map(mark, self._texts.located([chat.text for chat in chats]), chats)

    def _in_pieces(self, chat: RenderedChat) -> tuple[Marked, int]:
        """Encode in pieces, for a tokenizer that does not report the positions of its tokens."""
        marked = as_ids([])
        at = split = 0
        for begin, end in chat.spans:
            if at <= chat.split < begin:  # the last answer is in several parts
                marked = np.concatenate([marked, *self._ids([chat.text[at : chat.split]])])
                at, split = chat.split, len(marked)
            between, answer = self._ids([chat.text[at:begin], chat.text[begin:end]])
            split = len(marked) + len(between) if begin == chat.split else split
            marked = np.concatenate([marked, between, said(answer)])
            at = end
        return marked, split

    def _cut(self, place: str, asked: Marked, answer: Marked) -> Encoded:
        head = int(len(asked) > 0 and asked[0] == self._tokenizer.bos_token_id)
        kept = Kept(head, self._end_of(answer), keeps_first=False)
        source, target = cut(asked, answer, self._limits, kept)
        lost = len(asked) - len(source), len(answer) - len(target)
        is_source_lost = lost[0] > 0 and len(source) <= max(1, head)
        is_target_lost = lost[1] > 0 and len(target) <= kept.end
        marked = np.concatenate([source, target])
        return Encoded(place, marked, len(source), *lost, is_source_lost, is_target_lost)

    def _end_of(self, answer: Marked) -> int:
        """Return the number of last ids that are its end: the last special one and those after
        it."""
        for back, number in enumerate(reversed(answer.tolist()), 1):
            if number & ~SAID in self._special:
                return back
        return 0


class SeparateEncoder(Encoder):
    """Encodes as for jobs of version 0.2: source and target tokenised and cut separately."""

    def __init__(self, tokenizer: Any, limits: Limits, ignored: Collection[str] = ()) -> None:
        super().__init__(tokenizer)
        self._most_source, self._most_target = limits.source or 0, limits.target or 0
        self._template = ChatTemplate(tokenizer, ends_last=False, ignored=ignored)

    def _batch(self, records: Sequence[Record]) -> Iterator[Encoded]:
        chats = [
            self._template.rendered(as_conversation(record).with_last_answer())
            for record in records
        ]
        sources = self._ids([chat.text[: chat.split] for chat in chats])
        targets = self._ids([chat.text[slice(*chat.spans[-1])] for chat in chats])
        for record, asked, answer in zip(records, sources, targets, strict=True):
            source, target = asked[-self._most_source :], answer[: self._most_target]
            yield Encoded(
                record.place,
                np.concatenate([source, said(target)]),
                len(source),
                len(asked) - len(source),
                len(answer) - len(target),
                len(source) == 0,
                len(target) == 0,
            )


def mark(located: LocatedIds, chat: RenderedChat) -> tuple[Marked, int]:
    """Return (ids with marks on all that overlap an answer, up to the last of them; begin of the
    last answer)."""
    marked, last = located.ids.copy(), 0
    for span in chat.spans:
        begin, end = map(located.place, span)
        first = int(np.searchsorted(located.ends, begin, "right"))
        last = int(np.searchsorted(located.starts, end, "left"))
        marked[first:last] |= np.uint32(SAID)
    split = np.searchsorted(located.ends, located.place(chat.split), "right")
    return marked[:last], int(split)
