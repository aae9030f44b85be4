"""Examples without a chat template.

For a causal model: the source is the unchanged prompt, after the tokenizer's first token if it has
one, and the target is the response and the end-of-text token. A history is put before the prompt in
ChatGLM's rounds, as in its fine-tuning script. For an encoder-decoder both get the special tokens
of the tokenizer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from zerotools.core.errors import BadRequest
from zerotools.jobs.datafiles.example_files import Record, TextExample
from zerotoolsd.trainer.data.encoding.encoded import Encoded, Encoder, Marked, as_ids, said
from zerotoolsd.trainer.data.encoding.truncating import Kept, Limits, cut


class WithoutTemplate(Encoder):
    """The common part of both encoders."""

    def _without_template(self, record: Record) -> TextExample:
        if isinstance(record, TextExample):
            return record
        raise BadRequest(
            f"{record.place}: is a conversation, and the tokenizer in "
            f"{self._tokenizer.name_or_path} has no chat template to render it, or "
            'data.chat_template = "off": put its chat_template.jinja there'
        )


class PlainEncoder(WithoutTemplate):
    """A prompt and its response, one right after the other."""

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
        source, target = cut(asked, answer, self._limits, Kept(end=1))
        return Encoded(
            place,
            np.concatenate([source, said(target)]),
            len(source),
            len(asked) - len(source),
            len(answer) - len(target),
            len(source) <= len(self._first),
            len(target) <= len(self._last),
        )


class SpecialEncoder(WithoutTemplate):
    """Encodes source and target separately, each with the tokenizer's special tokens around it."""

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
                np.concatenate([as_ids(asked), said(as_ids(answer))]),
                len(asked),
                source_lost,
                target_lost,
                len(asked) <= extra,
                len(answer) <= extra,
            )

    def _cut(self, name: str, texts: list[str], most: int | None) -> list[tuple[list[int], int]]:
        """Return (ids, number of lost ones) of each; the tokenizer places its special ones."""
        whole: list[list[int]] = self._tokenizer(**{name: texts}, verbose=False)["input_ids"]
        if most is None:
            return [(ids, 0) for ids in whole]
        # A tokenizer cannot cut off its own special tokens.
        length = max(most, self._tokenizer.num_special_tokens_to_add())
        options = {"truncation": True, "max_length": length, "verbose": False}
        cut: list[list[int]] = self._tokenizer(**{name: texts}, **options)["input_ids"]
        return [(ids, len(all_ids) - len(ids)) for ids, all_ids in zip(cut, whole, strict=True)]


def in_rounds(record: TextExample) -> str:
    """Return the prompt, after the system's text and the earlier turns."""
    system = f"{record.system}\n\n" if record.system else ""
    if not record.history:
        return system + record.prompt
    rounds = [
        f"[Round {number}]\n问：{prompt}\n答：{response}\n"
        for number, (prompt, response) in enumerate(record.history)
    ]
    return system + "".join(rounds) + f"[Round {len(rounds)}]\n问：{record.prompt}\n答："
