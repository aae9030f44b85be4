"""Tokenised examples in two files: the ids one after the other, and where each example's lie.

Rank 0 writes both as it reads the text, so that memory does not grow with the data; all ranks map
them.
"""

from __future__ import annotations

import array
import mmap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal

from zerotoolsd.trainer.data.sequences import IGNORED, Example

ID_TYPE: Literal["I"] = "I"
PLACE_TYPE: Literal["Q"] = "Q"
_FIELDS = 3
"""An example's place: its first id, how many of its ids are the source, how many the target."""
Pair = tuple[Sequence[int], Sequence[int]]
"""The ids of a source and of its target."""


def write_examples(pairs: Iterable[Pair], path: Path) -> int:
    """Write `pairs` to `path` and its index beside it; how many they were."""
    at = count = 0
    with path.open("wb") as ids, index_of(path).open("wb") as places:
        for source, target in pairs:
            array.array(ID_TYPE, [*source, *target]).tofile(ids)
            array.array(PLACE_TYPE, [at, len(source), len(target)]).tofile(places)
            at += len(source) + len(target)
            count += 1
    return count


def index_of(path: Path) -> Path:
    """The index that belongs to a file of ids."""
    return path.with_name(path.name + ".index")


class Examples:
    """The examples that `write_examples` wrote; for an encoder-decoder, or for a causal model."""

    def __init__(self, path: Path, *, encoder_decoder: bool) -> None:
        self._ids = mapped(path, ID_TYPE)
        self._places = mapped(index_of(path), PLACE_TYPE)
        self._encoder_decoder = encoder_decoder

    def __len__(self) -> int:
        return len(self._places) // _FIELDS

    def _place(self, number: int) -> tuple[int, int, int]:
        at, source, target = self._places[number * _FIELDS : (number + 1) * _FIELDS]
        return at, source, target

    def example(self, number: int) -> Example:
        """A causal model reads source and target but its last token, and says the target."""
        at, source, target = self._place(number)
        ids = self._ids[at : at + source + target].tolist()
        if self._encoder_decoder:
            return Example(ids[:source], ids[source:])
        asked = [IGNORED] * (source - 1) + ids[max(1, source) :]
        return Example(ids[:-1], asked)

    def predicted(self, number: int) -> int:
        """The target's tokens; of a causal model without a source, all but the first."""
        _, source, target = self._place(number)
        return target if source or self._encoder_decoder else target - 1

    def size(self, number: int) -> int:
        """The tokens that go through the model."""
        _, source, target = self._place(number)
        return source + target - (0 if self._encoder_decoder else 1)


def mapped(path: Path, typecode: Literal["I", "Q"]) -> memoryview[int]:
    """The numbers in `path`, of an `array` typecode, read as they are asked for."""
    with path.open("rb") as file:
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)).cast(typecode)
