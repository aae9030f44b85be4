"""A chat's text as ids, with marks on those of its answers."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

from zerotools.jobs.datafiles.conversations import Conversation
from zerotools.jobs.datafiles.example_files import Record, as_conversation
from zerotoolsd.trainer.data.encoding.chats import ChatTemplate, RenderedChat, special_tokens
from zerotoolsd.trainer.data.encoding.encoded import SAID, Encoded, Encoder, said
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
        chats = [self._template.rendered(self._learned(record)) for record in records]
        for record, chat, (marked, split) in zip(records, chats, self._marked(chats), strict=True):
            found = self._cut(record.place, marked[:split], marked[split:])
            yield replace(found, is_changed=chat.is_changed, left_out=chat.left_out)

    def _learned(self, record: Record) -> Conversation:
        chat = as_conversation(record)
        return chat if self._all else chat.with_last_answer()

    def _marked(self, chats: Sequence[RenderedChat]) -> Iterator[tuple[list[int], int]]:
        """(ids with marks, where the last answer begins) of each."""
        texts = [chat.text for chat in chats]
        if not self._tokenizer.is_fast:
            yield from map(self._in_pieces, chats)
            return
        found = self._tokenizer(
            texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        for chat, ids, places in zip(
            chats, found["input_ids"], found["offset_mapping"], strict=True
        ):
            yield mark(ids, places, chat)

    def _in_pieces(self, chat: RenderedChat) -> tuple[list[int], int]:
        """Of a tokenizer that does not say where its tokens lie in the text."""
        marked: list[int] = []
        at = split = 0
        for begin, end in chat.spans:
            if at <= chat.split < begin:  # the last answer is in several parts
                marked += self._ids([chat.text[at : chat.split]])[0]
                at, split = chat.split, len(marked)
            between, answer = self._ids([chat.text[at:begin], chat.text[begin:end]])
            marked += between
            split = len(marked) if begin == chat.split else split
            marked += said(answer)
            at = end
        return marked, split

    def _cut(self, place: str, asked: list[int], answer: list[int]) -> Encoded:
        head = int(asked[:1] == [self._tokenizer.bos_token_id])
        kept = Kept(head, self._end_of(answer), keeps_first=False)
        source, target = cut(asked, answer, self._limits, kept)
        lost = len(asked) - len(source), len(answer) - len(target)
        is_source_lost = lost[0] > 0 and len(source) <= max(1, head)
        is_target_lost = lost[1] > 0 and len(target) <= kept.end
        return Encoded(place, source + target, len(source), *lost, is_source_lost, is_target_lost)

    def _end_of(self, answer: list[int]) -> int:
        """How many of its last ids are its end: the last special one and what follows."""
        for back, number in enumerate(reversed(answer), 1):
            if number & ~SAID in self._special:
                return back
        return 0


class SeparateEncoder(Encoder):
    """As jobs of version 0.2 were: source and target tokenised and cut each on its own."""

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
                source + said(target),
                len(source),
                len(asked) - len(source),
                len(answer) - len(target),
                not source,
                not target,
            )


def mark(
    ids: Sequence[int], places: Sequence[tuple[int, int]], chat: RenderedChat
) -> tuple[list[int], int]:
    """(`ids` with marks on all that lie in an answer, or reach into one, up to the last of them;
    where the last answer begins). `places` are those of the ids in the text."""
    marked, last = list(ids), 0
    starts = [start for start, _ in places]
    ends = [end for _, end in places]
    for begin, end in chat.spans:
        first, last = bisect_right(ends, begin), bisect_left(starts, end)
        marked[first:last] = said(ids[first:last])
    return marked[:last], bisect_right(ends, chat.split)
