"""The chunks that each rank saves: the same as torch would save, ranks and order included.

FSDP2 cuts dimension 0 with torch.chunk: every rank gets ceil(n / ranks) rows, the last fewer, and
ranks past the end an empty chunk at row n, which DCP saves too (once). A value that every rank
holds whole is saved by the rank with the fewest bytes so far; a shard counts with the size of its
whole tensor (torch/distributed/checkpoint/_dedup_save_plans.py, planner.py `tensor_storage_size`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from zerotools.core.boxes import Box


@dataclass(frozen=True, slots=True)
class SaveItem:
    """A value to save. `shape` is None if it is not a tensor; `nbytes` is the size of the whole."""

    key: str
    shape: tuple[int, ...] | None
    nbytes: int
    sharded: bool


@dataclass(frozen=True, slots=True)
class RankShard:
    """The part of a value that one rank saves; `box` is None if it is not a tensor."""

    value: SaveItem
    box: Box | None


def shard_box(shape: tuple[int, ...], rank: int, ranks: int) -> Box:
    """Return the rows of a tensor of at least one dimension that `rank` of `ranks` holds."""
    rows = shape[0]
    step = -(-rows // ranks)
    first, stop = min(rank * step, rows), min((rank + 1) * step, rows)
    return Box((first, *(0 for _ in shape[1:])), (stop - first, *shape[1:]))


def assign_shards(values: Sequence[SaveItem], ranks: int) -> list[list[RankShard]]:
    """Return the shards that each rank saves, in the order of `values`."""
    planned = [0] * ranks
    mine: list[dict[int, RankShard]] = [{} for _ in range(ranks)]
    seen: set[tuple[str, tuple[int, ...] | None]] = set()
    for rank in range(ranks):
        for number, value in enumerate(values):
            box = _box(value, rank, ranks)
            index = (value.key, None if box is None else box.start)
            if index in seen:
                continue
            seen.add(index)
            holders = _holders(value, box, rank, ranks)
            chosen = min(holders, key=planned.__getitem__)
            planned[chosen] += value.nbytes or 1
            mine[chosen][number] = RankShard(value, box)
    return [[shards[number] for number in sorted(shards)] for shards in mine]


def _box(value: SaveItem, rank: int, ranks: int) -> Box | None:
    if value.shape is None:
        return None
    return shard_box(value.shape, rank, ranks) if value.sharded else Box.whole(value.shape)


def _holders(value: SaveItem, box: Box | None, rank: int, ranks: int) -> range:
    """Return the ranks that hold the same chunk; those before `rank` have been checked already."""
    if box is None or not value.sharded:
        return range(ranks)
    return range(rank, ranks) if box.shape[0] == 0 else range(rank, rank + 1)
