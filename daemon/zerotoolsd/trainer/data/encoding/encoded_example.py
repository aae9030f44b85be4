"""Defines the encoded example and the base class of encoders, and cuts long examples."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from zerotools.jobs.datafiles.examples_and_documents import Record
from zerotoolsd.trainer.data.encoding.token_positions import TextIds

LEARNED = 1 << 31
"""The bit that marks an id as learned. Token ids are smaller than this number."""
AT_ONCE = 256
LETTERS_AT_ONCE = 1 << 20
"""A batch for the tokenizer ends after AT_ONCE examples, or after this number of characters."""
Marked = npt.NDArray[np.uint32]


@dataclass(frozen=True, eq=False)
class Encoded:
    """The ids of an example, after it was cut to the limits.

    Attributes:
        place: the position of the example in the data, for messages.
        split: the first `split` ids are its source: the prompt, or all turns before the last
            answer. The rest is its target.
        marked: the ids. The model learns the ids that have the bit `LEARNED`.
        source_lost, target_lost: the numbers of tokens that were cut off.
        is_source_lost, is_target_lost: whether the cut left no text of the source, or of the
            target.
        is_changed: whether the chat template left out a part of an answer.
        left_out: the names of fields of turns that the template does not show.
    """

    place: str
    marked: Marked
    split: int
    source_lost: int = 0
    target_lost: int = 0
    is_source_lost: bool = False
    is_target_lost: bool = False
    is_changed: bool = False
    left_out: tuple[str, ...] = ()

    @property
    def source(self) -> list[int]:
        """The ids of the source, without the bit `LEARNED`."""
        found: list[int] = without_marks(self.marked[: self.split]).tolist()
        return found

    @property
    def target(self) -> list[int]:
        """The ids of the target (the response, or the last answer), without the bit `LEARNED`."""
        found: list[int] = without_marks(self.marked[self.split :]).tolist()
        return found


def as_ids(ids: Sequence[int]) -> Marked:
    """Return `ids` as an array of uint32."""
    return np.array(ids, np.uint32)


def mark_learned(ids: Marked) -> Marked:
    """Return a copy of `ids` in which each id has the bit `LEARNED`."""
    return ids | np.uint32(LEARNED)


def without_marks(marked: Marked) -> Marked:
    """Return a copy of `marked` in which no id has the bit `LEARNED`."""
    return marked & ~np.uint32(LEARNED)


class Encoder(ABC):
    """Base class of encoders. An encoder turns examples into token ids."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._texts = TextIds(tokenizer)

    def encoded(self, records: Iterable[Record]) -> Iterator[Encoded]:
        """Encode `records`, and yield the encoded examples in the same order.

        Raises:
            BadFile: the chat template rejects a record. The message names the place of the record.
            BadRequest: the answers cannot be found in the rendered text.
        """
        for batch in batches_of(records):
            yield from self.batch(batch)

    def batch(self, records: Sequence[Record]) -> Iterator[Encoded]:
        """Encode one batch of records, and yield the encoded examples.

        Raises the errors of `encoded`.
        """
        return self._batch(records)

    @abstractmethod
    def _batch(self, records: Sequence[Record]) -> Iterator[Encoded]: ...

    def _ids(self, texts: Sequence[str]) -> list[Marked]:
        return self._texts.ids(texts)


def batches_of(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Divide `records` into batches, and yield the batches. Each batch is tokenised in one call."""
    batch: list[Record] = []
    letters = 0
    for record in records:
        batch.append(record)
        letters += record.letters
        if len(batch) == AT_ONCE or letters >= LETTERS_AT_ONCE:
            yield batch
            batch, letters = [], 0
    if batch:
        yield batch


Ids = npt.NDArray[np.uint32]


@dataclass(frozen=True)
class Limits:
    """The largest number of tokens of an example and its parts; None: no limit.

    Attributes:
        whole: the limit for source and target together.
        source: the limit for the source.
        target: the limit for the target.
    """

    whole: int | None = None
    source: int | None = None
    target: int | None = None


@dataclass(frozen=True)
class Kept:
    """The parts of an example that are kept when it is cut.

    The first `kept_head` ids of the source and the last `kept_tail` ids of the target are always
    kept, if they fit. The rest of the source loses its last ids if `keeps_first` is True, otherwise
    its first ids.
    """

    kept_head: int = 0
    kept_tail: int = 0
    keeps_first: bool = True


def cut_to_limits(source: Ids, target: Ids, limits: Limits, kept: Kept) -> tuple[Ids, Ids]:
    """Cut `source` and `target` to `limits`, and return both.

    If both together are too long, the source is cut first, but at least one token of it is kept.
    Then the target is cut.
    """
    target = _cut_target(target, limits.target, kept)
    source = _cut_source(source, limits.source, kept)
    if limits.whole is not None and len(source) + len(target) > limits.whole:
        source = _cut_source(source, max(1, limits.whole - len(target)), kept)
        target = _cut_target(target, limits.whole - len(source), kept)
    return source, target


def _cut_source(ids: Ids, most: int | None, kept: Kept) -> Ids:
    if most is None or len(ids) <= most:
        return ids
    if kept.keeps_first:
        return ids[:most]
    head = min(kept.kept_head, most - 1)
    return np.concatenate([ids[:head], ids[len(ids) - (most - head) :]])


def _cut_target(ids: Ids, most: int | None, kept: Kept) -> Ids:
    if most is None or len(ids) <= most:
        return ids
    end = min(kept.kept_tail, most)
    return np.concatenate([ids[: most - end], ids[len(ids) - kept.kept_tail :][:end]])
