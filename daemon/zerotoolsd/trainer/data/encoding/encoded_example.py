"""An encoded example, the base class of encoders, and how an example that is too long is cut."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from zerotools.jobs.datafiles.example_files import Record
from zerotoolsd.trainer.data.encoding.text_ids import TextIds

LEARNED = 1 << 31
"""The bit that marks an id as learned. Ids are smaller."""
AT_ONCE = 256
LETTERS_AT_ONCE = 1 << 20
"""Examples are tokenised in batches of AT_ONCE examples, or of this many characters."""
Marked = npt.NDArray[np.uint32]


@dataclass(frozen=True, eq=False)
class Encoded:
    """The ids of an example.

    The first `split` ids are its source. Ids with the bit `LEARNED` are learned. `source_lost` and
    `target_lost` tokens were cut off. `is_source_lost` and `is_target_lost` mean that no text is
    left. `is_changed` means that a chat template left out a part of an answer. `left_out` names the
    fields of turns that the template does not show.
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
        """The ids of the source, without marks."""
        found: list[int] = without_marks(self.marked[: self.split]).tolist()
        return found

    @property
    def target(self) -> list[int]:
        """The ids of the last answer, without marks."""
        found: list[int] = without_marks(self.marked[self.split :]).tolist()
        return found


def as_ids(ids: Sequence[int]) -> Marked:
    """Return `ids` as an array."""
    return np.array(ids, np.uint32)


def mark_learned(ids: Marked) -> Marked:
    """Return `ids`, marked as learned."""
    return ids | np.uint32(LEARNED)


def without_marks(marked: Marked) -> Marked:
    """Return the ids without marks."""
    return marked & ~np.uint32(LEARNED)


class Encoder(ABC):
    """Base class of encoders."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._texts = TextIds(tokenizer)

    def encoded(self, records: Iterable[Record]) -> Iterator[Encoded]:
        """Yield the encoded examples of `records`, in order.

        Raises:
            BadFile: the chat template rejects a record; the message names its place.
            BadRequest: the answers cannot be found in the text of the template.
        """
        for batch in batches_of(records):
            yield from self.batch(batch)

    def batch(self, records: Sequence[Record]) -> Iterator[Encoded]:
        """Return the encoded examples of one batch of records. Raises as `encoded`."""
        return self._batch(records)

    @abstractmethod
    def _batch(self, records: Sequence[Record]) -> Iterator[Encoded]: ...

    def _ids(self, texts: Sequence[str]) -> list[Marked]:
        return self._texts.ids(texts)


def batches_of(records: Iterable[Record]) -> Iterator[list[Record]]:
    """Yield batches of records that are tokenised together."""
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
    """The largest number of tokens of source and target together, and of each; None: no limit."""

    whole: int | None = None
    source: int | None = None
    target: int | None = None


@dataclass(frozen=True)
class Kept:
    """The parts of an example that a cut keeps.

    They are the first `head` ids of the source and the last `end` ids of the target. Of the rest of
    the source, the first ids are kept if `keeps_first` is True, else the last ids.
    """

    head: int = 0
    end: int = 0
    keeps_first: bool = True


def cut(source: Ids, target: Ids, limits: Limits, kept: Kept) -> tuple[Ids, Ids]:
    """Return (source, target) within `limits`. The source is cut first, and at least one of its
    tokens stays."""
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
    head = min(kept.head, most - 1)
    return np.concatenate([ids[:head], ids[len(ids) - (most - head) :]])


def _cut_target(ids: Ids, most: int | None, kept: Kept) -> Ids:
    if most is None or len(ids) <= most:
        return ids
    end = min(kept.end, most)
    return np.concatenate([ids[: most - end], ids[len(ids) - kept.end :][:end]])
