"""Stores encoded examples in two files: the ids of all examples, and an index with the position of
each example.

The first rank of a node writes both files while it reads the text, so the memory that it needs does
not grow with the data. All ranks of the node read the files. A preference pair is stored as two
examples: the chosen answer, then the rejected answer.
"""

from __future__ import annotations

import array
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from zerotools.io.numeric.number_file import NumberFile
from zerotoolsd.trainer.data.encoding.encoded_example import LEARNED, Encoded
from zerotoolsd.trainer.data.example_pools import IGNORED, Example

BYTE_TYPE = "B"
ID_TYPE: Literal["I"] = "I"
PLACE_TYPE: Literal["Q"] = "Q"
_NUMPY = {"B": "<u1", "I": "<u4", "Q": "<u8"}
_AT_ONCE = 1 << 22
_FIELDS = 4
"""How many numbers an index entry has: first id, number of ids, number of source ids, number of
learned ids.
"""

References = npt.NDArray[np.float32]
"""Reference log-probabilities of the chosen and the rejected answer of each pair, `[pairs, 2]`."""


def write_examples(examples: Iterable[Encoded], path: Path, *, encoder_decoder: bool) -> int:
    """Write `examples` to `path` and their index to `index_of(path)`; return the number of
    examples."""
    at = count = 0
    with path.open("wb") as ids, index_of(path).open("wb") as places:
        for example in examples:
            marked, split = example.marked, example.split
            first = split if encoder_decoder else 1
            said = int(np.count_nonzero(marked[first:] >= LEARNED))
            ids.write(marked.astype(_NUMPY[ID_TYPE], copy=False).data)
            array.array(PLACE_TYPE, [at, len(marked), split, said]).tofile(places)
            at += len(marked)
            count += 1
    return count


def index_of(path: Path) -> Path:
    """Return the path of the index file that belongs to the file of ids `path`."""
    return path.with_name(path.name + ".index")


class Examples:
    """A pool of the examples in the files of `write_examples`, for an encoder-decoder or a causal
    model.
    """

    def __init__(self, path: Path, *, encoder_decoder: bool) -> None:
        self._ids = open_numbers(path, ID_TYPE)
        self._locations = open_numbers(index_of(path), PLACE_TYPE)
        self._encoder_decoder = encoder_decoder

    def __len__(self) -> int:
        return len(self._locations) // _FIELDS

    def _read_location(self, number: int) -> tuple[int, int, int, int]:
        at, length, split, said = self._locations.read(
            _FIELDS * number, _FIELDS * (number + 1)
        ).tolist()
        return at, length, split, said

    def example(self, number: int) -> Example:
        """Return example `number`.

        For a causal model, the inputs are all tokens but the last, and only answers have targets.
        """
        at, length, split, _ = self._read_location(number)
        marked = self._ids.read(at, at + length)
        ids = (marked & ~np.uint32(LEARNED)).astype(np.int64)
        if self._encoder_decoder:
            return Example(ids[:split], ids[split:])
        return Example(ids[:-1], np.where(marked[1:] >= LEARNED, ids[1:], IGNORED))

    def digest(self) -> str:
        """Return the SHA-256 of the ids and the index, in hexadecimal digits."""
        found = hashlib.sha256()
        for numbers in (self._ids, self._locations):
            found.update(f"{len(numbers)} ".encode())
            for first in range(0, len(numbers), _AT_ONCE):
                found.update(numbers.read(first, first + _AT_ONCE).tobytes())
        return found.hexdigest()

    def predicted(self, number: int) -> int:
        """Return the number of learned tokens of example `number`.

        A causal model cannot learn the first token.
        """
        return self._read_location(number)[3]

    def size(self, number: int) -> int:
        """Return the number of tokens of example `number` that pass through the model."""
        return self._read_location(number)[1] - (0 if self._encoder_decoder else 1)


@dataclass(frozen=True, eq=False)
class Preference(Example):
    """A preference pair. The object itself is the example with the chosen answer; `rejected` is the
    example with the rejected answer.

    `reference` has the log-probabilities of the chosen and the rejected answer under the initial
    weights.
    """

    rejected: Example = field(default_factory=lambda: Example((), ()))
    reference: tuple[float, float] = (0.0, 0.0)

    @property
    def has_targets(self) -> bool:
        """True if the chosen answer has at least one learned token."""
        return any(number != IGNORED for number in self.targets)

    def without_targets(self) -> Preference:
        """Return a copy of the pair in which no token of either answer is learned."""
        targets = np.full(len(self.targets), IGNORED)
        return replace(self, targets=targets, rejected=self.rejected.without_targets())


class PreferencePairs:
    """A pool of the preference pairs of one source."""

    def __init__(self, examples: Examples) -> None:
        self._examples = examples
        self._references: References | None = None

    def __len__(self) -> int:
        return len(self._examples) // 2

    def set_references(self, references: References) -> None:
        """Set the reference log-probabilities of all pairs to `references`."""
        assert references.shape == (len(self), 2)
        self._references = references

    def example(self, number: int) -> Preference:
        chosen, rejected = (self._examples.example(2 * number + which) for which in (0, 1))
        reference = (0.0, 0.0)
        if self._references is not None:
            reference = (float(self._references[number, 0]), float(self._references[number, 1]))
        return Preference(chosen.inputs, chosen.targets, (), rejected, reference)

    def predicted(self, number: int) -> int:
        """Return 1: the loss is an average over pairs, so each pair counts as one."""
        return 1

    def size(self, number: int) -> int:
        """Return the number of tokens of pair `number`: the tokens of both answers, each with its
        prompt.
        """
        return self._examples.size(2 * number) + self._examples.size(2 * number + 1)

    def digest(self) -> str:
        """Return the SHA-256 of the stored ids, in hexadecimal digits."""
        return self._examples.digest()


def vocabulary_in(path: Path) -> int:
    """Return the largest id in the file `path`, plus one; 0 if the file is empty.

    The bit that marks learned ids is removed first.
    """
    ids = open_numbers(path, ID_TYPE)
    parts = (ids.read(first, first + _AT_ONCE) for first in range(0, len(ids), _AT_ONCE))
    return max((int((part & ~np.uint32(LEARNED)).max()) + 1 for part in parts), default=0)


def open_numbers(path: Path, typecode: str) -> NumberFile:
    """Open the file `path` as an array of numbers.

    `typecode` is a type code of Python's `array`.
    """
    return NumberFile(path, _NUMPY[typecode])
