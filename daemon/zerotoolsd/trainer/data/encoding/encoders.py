"""The encoders of chats and of plain text, and the choice between them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from zerotools.core.errors import BadRequest
from zerotools.jobs.datafiles.conversations import Conversation
from zerotools.jobs.datafiles.examples_and_documents import Record, TextExample, as_conversation
from zerotools.jobs.jobfile_tables.data import ALL, SEPARATE, DataSpec
from zerotoolsd.trainer.data.encoding.chat_template import (
    ChatTemplate,
    RenderedChat,
    special_tokens,
)
from zerotoolsd.trainer.data.encoding.encoded_example import (
    LEARNED,
    Encoded,
    Encoder,
    Kept,
    Limits,
    Marked,
    as_ids,
    cut_to_limits,
    mark_learned,
)
from zerotoolsd.trainer.data.encoding.token_positions import LocatedIds


def make_encoder(
    tokenizer: Any, data: DataSpec, *, encoder_decoder: bool, positions: int | None = None
) -> Encoder:
    """Return the encoder for the settings `data`, the tokenizer and the kind of model.

    `positions` is the model's number of positions (None: no limit).

    Raises:
        BadRequest: the job needs a chat template or an end-of-text token, and the tokenizer has
            none.
    """
    limits = limits_of(data, encoder_decoder=encoder_decoder, positions=positions)
    has_template = bool(getattr(tokenizer, "chat_template", None))
    if data.chat_template == "on" and not has_template:
        raise BadRequest(
            f'data.chat_template = "on": the tokenizer in {tokenizer.name_or_path} has '
            "no chat template; add its chat_template.jinja there, or remove the key"
        )
    if has_template and data.chat_template != "off":
        if data.truncation == SEPARATE:
            return SeparateEncoder(tokenizer, limits, data.ignore_fields)
        return ChatEncoder(
            tokenizer,
            limits,
            all_answers=data.loss_on == ALL and not encoder_decoder,
            ignored=data.ignore_fields,
        )
    if tokenizer.eos_token_id is None:
        raise BadRequest(
            f"the tokenizer in {tokenizer.name_or_path} has no eos_token to mark the end of a "
            "response: set eos_token in its tokenizer_config.json"
        )
    return (SpecialEncoder if encoder_decoder else PlainEncoder)(tokenizer, limits)


def limits_of(data: DataSpec, *, encoder_decoder: bool, positions: int | None) -> Limits:
    """Return how many tokens of an example are kept, for a model with `positions` positions.

    A causal model only predicts the last token and does not read it. So an example may have one
    token more than the model has positions. In an encoder-decoder, the prompt may use all positions
    of the encoder, and the response all positions of the decoder.
    """
    most_source, most_target = data.max_source_length, data.max_target_length
    if data.truncation == SEPARATE:
        return Limits(None, most_source, most_target)
    lengths = [length for length in (data.sequence_length, positions) if length is not None]
    most = min(lengths, default=None)
    if most is None:
        return Limits(None, most_source, most_target)
    if not encoder_decoder:
        return Limits(most + 1, most_source, most_target)
    return Limits(None, min(most, most_source or most), min(most, most_target or most))


class ChatEncoder(Encoder):
    """Encodes a rendered chat as one text. The ids of its answers are marked as learned."""

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
        """Yield (the ids with marks, the index at which the last answer begins) for each chat."""
        if not self._tokenizer.is_fast:
            return map(self._in_pieces, chats)
        return map(mark_answers, self._texts.located([chat.text for chat in chats]), chats)

    def _in_pieces(self, chat: RenderedChat) -> tuple[Marked, int]:
        """Return the result of `_marked` for one chat, with a tokenizer that does not report the
        positions of its tokens.

        The text is cut where an answer begins or ends, and each piece is tokenised alone.
        """
        marked = as_ids([])
        at = split = 0
        for begin, end in chat.spans:
            if at <= chat.split < begin:  # the last answer is in several parts
                marked = np.concatenate([marked, *self._ids([chat.text[at : chat.split]])])
                at, split = chat.split, len(marked)
            between, answer = self._ids([chat.text[at:begin], chat.text[begin:end]])
            split = len(marked) + len(between) if begin == chat.split else split
            marked = np.concatenate([marked, between, mark_learned(answer)])
            at = end
        return marked, split

    def _cut(self, place: str, asked: Marked, answer: Marked) -> Encoded:
        head = int(len(asked) > 0 and asked[0] == self._tokenizer.bos_token_id)
        kept = Kept(head, self._end_of(answer), keeps_first=False)
        source, target = cut_to_limits(asked, answer, self._limits, kept)
        lost = len(asked) - len(source), len(answer) - len(target)
        is_source_lost = lost[0] > 0 and len(source) <= max(1, head)
        is_target_lost = lost[1] > 0 and len(target) <= kept.kept_tail
        marked = np.concatenate([source, target])
        return Encoded(place, marked, len(source), *lost, is_source_lost, is_target_lost)

    def _end_of(self, answer: Marked) -> int:
        """Return the number of ids from the last special token of `answer` to its end, this token
        included.

        Returns 0 if the answer has no special token.
        """
        for back, number in enumerate(reversed(answer.tolist()), 1):
            if number & ~LEARNED in self._special:
                return back
        return 0


class SeparateEncoder(Encoder):
    """Encodes a chat as version 0.2 of zerotools did: source and target are tokenised and cut
    separately.
    """

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
                np.concatenate([source, mark_learned(target)]),
                len(source),
                len(asked) - len(source),
                len(answer) - len(target),
                len(source) == 0,
                len(target) == 0,
            )


def mark_answers(located: LocatedIds, chat: RenderedChat) -> tuple[Marked, int]:
    """Mark each id of a chat as learned if its text overlaps an answer.

    Returns (the ids up to the end of the last answer, the index at which the last answer begins).
    """
    marked, last = located.ids.copy(), 0
    for span in chat.spans:
        begin, end = map(located.to_unit, span)
        first = int(np.searchsorted(located.ends, begin, "right"))
        last = int(np.searchsorted(located.starts, end, "left"))
        marked[first:last] |= np.uint32(LEARNED)
    split = np.searchsorted(located.ends, located.to_unit(chat.split), "right")
    return marked[:last], int(split)


class WithoutTemplate(Encoder):
    """Base class of the encoders that use no chat template."""

    def _without_template(self, record: Record) -> TextExample:
        if isinstance(record, TextExample):
            return record
        raise BadRequest(
            f"{record.place}: is a conversation, but no chat template is used: the tokenizer in "
            f'{self._tokenizer.name_or_path} has none, or data.chat_template = "off"; put its '
            "chat_template.jinja there, or remove this key"
        )


class PlainEncoder(WithoutTemplate):
    """Encodes a prompt and its response for a causal model, without a chat template.

    The source is the begin token, if the tokenizer adds one, and the unchanged prompt. The target
    is the response and the end-of-text token. If the example has a history of earlier turns, they
    come before the prompt, in the format of ChatGLM's fine-tuning script.
    """

    def __init__(self, tokenizer: Any, limits: Limits) -> None:
        super().__init__(tokenizer)
        self._limits = limits
        first = tokenizer.bos_token_id
        begins = tokenizer(["a"], verbose=False)["input_ids"][0][:1] == [first]
        self._first = as_ids([first] if first is not None and begins else [])
        self._last = as_ids([tokenizer.eos_token_id])

    def _batch(self, records: Sequence[Record]) -> Iterator[Encoded]:
        examples = [self._without_template(record) for record in records]
        sources = self._ids([in_rounds(record) for record in examples])
        targets = self._ids([record.response for record in examples])
        for record, asked, answer in zip(examples, sources, targets, strict=True):
            source = np.concatenate([self._first, asked])
            yield self._cut(record.place, source, np.concatenate([answer, self._last]))

    def _cut(self, place: str, asked: Marked, answer: Marked) -> Encoded:
        source, target = cut_to_limits(asked, answer, self._limits, Kept(kept_tail=1))
        return Encoded(
            place,
            np.concatenate([source, mark_learned(target)]),
            len(source),
            len(asked) - len(source),
            len(answer) - len(target),
            len(source) <= len(self._first),
            len(target) <= len(self._last),
        )


class SpecialEncoder(WithoutTemplate):
    """Encodes a prompt and its response for an encoder-decoder.

    Both texts get the special tokens that the tokenizer adds to a text.
    """

    def __init__(self, tokenizer: Any, limits: Limits) -> None:
        super().__init__(tokenizer)
        self._limits = limits

    def _batch(self, records: Sequence[Record]) -> Iterator[Encoded]:
        examples = [self._without_template(record) for record in records]
        extra: int = self._tokenizer.num_special_tokens_to_add()
        sources = self._cut("text", [in_rounds(r) for r in examples], self._limits.source)
        targets = self._cut("text_target", [r.response for r in examples], self._limits.target)
        for record, source, target in zip(examples, sources, targets, strict=True):
            (asked, source_lost), (answer, target_lost) = source, target
            yield Encoded(
                record.place,
                np.concatenate([as_ids(asked), mark_learned(as_ids(answer))]),
                len(asked),
                source_lost,
                target_lost,
                len(asked) <= extra,
                len(answer) <= extra,
            )

    def _cut(self, name: str, texts: list[str], most: int | None) -> list[tuple[list[int], int]]:
        """Tokenise `texts`, and cut each text to `most` tokens.

        Return (ids, number of lost ids) for each text.

        `name` is the tokenizer's argument, `text` or `text_target`. The ids include special tokens.
        """
        whole: list[list[int]] = self._tokenizer(**{name: texts}, verbose=False)["input_ids"]
        if most is None:
            return [(ids, 0) for ids in whole]
        # A tokenizer cannot cut off its own special tokens.
        length = max(most, self._tokenizer.num_special_tokens_to_add())
        options = {"truncation": True, "max_length": length, "verbose": False}
        cut: list[list[int]] = self._tokenizer(**{name: texts}, **options)["input_ids"]
        return [(ids, len(all_ids) - len(ids)) for ids, all_ids in zip(cut, whole, strict=True)]


def in_rounds(record: TextExample) -> str:
    """Return the system text, the earlier turns and the prompt as one text, in ChatGLM's format of
    numbered rounds.

    Without earlier turns, return only the system text and the prompt.
    """
    system = f"{record.system}\n\n" if record.system else ""
    if not record.history:
        return system + record.prompt
    rounds = [
        f"[Round {number}]\n问：{prompt}\n答：{response}\n"
        for number, (prompt, response) in enumerate(record.history)
    ]
    return system + "".join(rounds) + f"[Round {len(rounds)}]\n问：{record.prompt}\n答："
