"""Lost files of ranks, proved by the other files.

Torch's writer makes one file for each rank and each file of the model: rank 1's part of the tensors
in file 1 of 3 is in `shard-00002-model-00001-of-00003`. A rank writes a piece of every tensor that
is cut over it, even an empty one. So a file is certainly missing if a tensor has fewer pieces than
tensors in other files. A tensor that lost its last pieces has no known shape.

A file may never have existed: only one rank writes a tensor that every rank has whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from zerotools.core.checkpoint import Key, Problem, Tensor
from zerotools.formats.safetensors.rank_files import SHARD


@dataclass(frozen=True, slots=True)
class _Cut:
    """A tensor that is cut along one dimension: the number of its pieces, the sizes of the first
    and last along it, and the end of the last. `has_hole` means that one between them is missing.
    """

    pieces: int
    first: int
    last: int
    end: int
    has_hole: bool

    @property
    def is_ended(self) -> bool:
        """True if the last piece is smaller than the first, so that no element comes after it."""
        return self.last < self.first

    def is_cut_into(self, ranks: int) -> bool:
        """Return whether a cut into `ranks` pieces gives these pieces, with none lost."""
        return not self.has_hole and self.pieces == ranks and -(-self.end // ranks) == self.first


@dataclass(frozen=True, slots=True)
class LostShards:
    """`problems` are files that are certainly missing, and the tensors that are unknown without
    them; `unknown` are the tensors without a known shape. `doubtful` has sentences on files that
    may never have existed, by an existing file."""

    problems: tuple[Problem, ...]
    unknown: frozenset[Key]
    doubtful: Mapping[str, str]


def lost_shards(root: Path, tensors: Mapping[Key, Tensor], names: Sequence[str]) -> LostShards:
    """Return the lost files that the files `names` of one model imply."""
    files: dict[int, dict[int, str]] = {}
    for name in names:
        match = SHARD.fullmatch(name)
        if match is not None:
            files.setdefault(int(match[2]), {})[int(match[1])] = name
    numbers = {number for there in files.values() for number in there}
    ranks = max(numbers, default=0)
    short = {part: there for part, there in files.items() if len(there) < ranks}
    cuts = {key: cut for key, tensor in tensors.items() if (cut := _cut_of(tensor)) is not None}
    whole = {name for part, there in files.items() if part not in short for name in there.values()}
    known = {  # empty pieces of several ranks are one
        cut.pieces for key, cut in cuts.items() if cut.last and _files(tensors[key]) <= whole
    }
    problems: list[Problem] = []
    unknown: set[Key] = set()
    doubtful: dict[str, str] = {}
    for there in short.values():
        own = set(there.values())
        of_file = {key: cut for key, cut in cuts.items() if _files(tensors[key]) <= own}
        allowed = known or {n for n in range(2, ranks + 1) if ranks % n == 0}
        lost = {key: c for key, c in of_file.items() if not any(map(c.is_cut_into, allowed))}
        absent = sorted(numbers - there.keys())  # a rank without any file is named by its number
        if not absent:
            continue
        first = next(iter(there.values()))
        missing = [SHARD.sub(rf"shard-{n:05d}-model-\2-of-\3.safetensors", first) for n in absent]
        if not lost:
            doubtful[first] = (
                f"{root / missing[0]} does not exist, and may never have existed: no tensor "
                "of this part of the model is split over all ranks"
            )
            continue
        said = f"other files of the model have {ranks} shards: take another copy of the model"
        problems += [  # tensors that one rank has whole may have been in it, too
            Problem(f"{root / name} is missing; {said}", name, blocks=True) for name in missing
        ]
        for key, cut in lost.items():
            if not (cut.is_ended or cut.has_hole):
                unknown.add(key)
                why = (
                    f"{root / missing[0]} is missing: {key} ends at {cut.end} in the other "
                    "shards, and its shape is not known"
                )
                problems.append(Problem(why, missing[0], key.name, blocks=True))
    return LostShards(tuple(problems), frozenset(unknown), doubtful)


def _files(tensor: Tensor) -> set[str]:
    return {chunk.file for chunk in tensor.chunks}


def _cut_of(tensor: Tensor) -> _Cut | None:
    """Return the cut of a tensor, or None if it is whole or cut along several dimensions."""
    cut_along = list(_dimensions(tensor))
    if len(tensor.chunks) < 2 or len(cut_along) != 1:
        return None
    (dim,) = cut_along
    pieces = sorted({(c.box.start[dim], c.box.shape[dim]) for c in tensor.chunks})
    full = [piece for piece in pieces if piece[1]]
    if not full:
        return None
    ends = [start + length for start, length in pieces]
    starts = [start for start, _ in pieces[1:]]
    has_hole = pieces[0][0] > 0 or any(a < b for a, b in zip(ends, starts, strict=False))
    return _Cut(len(pieces), full[0][1], pieces[-1][1], max(ends), has_hole)


def _dimensions(tensor: Tensor) -> Iterator[int]:
    for dim, size in enumerate(tensor.shape):
        if any(chunk.box.shape[dim] != size for chunk in tensor.chunks):
            yield dim
