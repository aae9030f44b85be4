"""Lay out the files of one DCP directory, one per rank, as torch would save a flat state dict.

Each file holds torch.save archives back to back: first the values that are not tensors, then the
rank's chunks. `.metadata` records the position of each archive.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Chunk, Key, Tensor
from zerotools.core.target import FilePlan
from zerotools.io.distcp.dcp_file_names import METADATA
from zerotools.io.distcp.lay_out_data_file import PlannedFile
from zerotools.io.distcp.metadata import Item
from zerotools.io.distcp.metadata_writer import WrittenItem, metadata_bytes
from zerotools.io.output.files_without_tensors import file_of_bytes

Paths = Mapping[str, tuple[str | int, ...]]


@dataclass(frozen=True, slots=True)
class CopiedTensor:
    """A tensor of the output that is copied from the source, element by element.

    To plan the output, only the tensor's dtype and shape are needed. If the tensor is not sharded,
    every rank holds a whole copy of it.
    """

    key: Key
    tensor: Tensor
    sharded: bool


@dataclass(frozen=True, slots=True)
class KnownTensor:
    """A tensor of the output, such as `step`, with bytes that are known when the output is planned.
    Every rank holds it.
    """

    key: Key
    tensor: Tensor
    data: bytes


@dataclass(frozen=True, slots=True)
class CarriedValue:
    """A value of the source that is not a tensor. Its bytes are copied from the file
    `root / item.file`, not pickled again.
    """

    item: Item
    root: Path


@dataclass(frozen=True, slots=True)
class PlainValue:
    """A value that is not a tensor, pickled into an archive by `archive_of`."""

    archive: bytes


@dataclass(frozen=True, slots=True)
class TiedTensor:
    """A second name for the tensor with the flat key `flat`; both names share the same bytes."""

    flat: str


DcpEntry = CopiedTensor | KnownTensor | CarriedValue | PlainValue | TiedTensor


@dataclass(frozen=True)
class DcpFiles:
    """The planned files of one DCP directory, keyed by path relative to the checkpoint.

    `tensors` are the tensors that are copied from the source. `known` are the tensors, such as
    `step`, with bytes that are already known.
    """

    files: Mapping[str, FilePlan]
    tensors: Mapping[Key, Tensor]
    known: Mapping[Key, Tensor]


def lay_out_directory(
    entries: Mapping[str, DcpEntry], paths: Paths | None, world_size: int, *, prefix: str = ""
) -> DcpFiles:
    """Plan the files of one DCP directory, at `prefix` below the root, with the values
    `entries`.

    `entries` maps flat keys to values, in the order of the state dict. `paths` is planner_data: it
    maps flat keys to paths in the state dict.
    """
    tied: dict[str, list[str]] = {}
    for name, entry in entries.items():
        if isinstance(entry, TiedTensor):
            tied.setdefault(entry.flat, []).append(name)
    values = [
        _value(key, entry) for key, entry in entries.items() if not isinstance(entry, TiedTensor)
    ]
    files = [_File(f"__{rank}_0.distcp", prefix=prefix) for rank in range(world_size)]
    for file, shards in zip(files, assign_shards(values, world_size), strict=True):
        file.add(shards, entries)
    written = [one for file in files for one in file.planned(tied)]
    plans = {prefix + file.name: file.plan() for file in files}
    plans[prefix + METADATA] = file_of_bytes(metadata_bytes(written, paths))
    chunks: dict[Key, list[Chunk]] = {}
    for file in files:
        for key, chunk in file.chunks:
            chunks.setdefault(key, []).append(chunk)
    return DcpFiles(
        plans, _tensors(CopiedTensor, entries, chunks), _tensors(KnownTensor, entries, chunks)
    )


def _value(flat: str, entry: DcpEntry) -> SaveItem:
    if isinstance(entry, CopiedTensor):
        tensor = entry.tensor
        return SaveItem(flat, tensor.shape, tensor.nbytes, entry.sharded)
    if isinstance(entry, KnownTensor):
        return SaveItem(flat, entry.tensor.shape, entry.tensor.nbytes, sharded=False)
    return SaveItem(flat, None, 0, sharded=False)


def _tensors(
    kind: type[CopiedTensor] | type[KnownTensor],
    entries: Mapping[str, DcpEntry],
    chunks: Mapping[Key, list[Chunk]],
) -> dict[Key, Tensor]:
    return {
        entry.key: Tensor(entry.tensor.dtype, entry.tensor.shape, chunks.get(entry.key, []))
        for entry in entries.values()
        if isinstance(entry, kind)
    }


@dataclass
class _File(PlannedFile):
    """The file of one rank while it is being planned. `prefix` is its directory below the root."""

    prefix: str = ""
    chunks: list[tuple[Key, Chunk]] = field(default_factory=list)
    items: dict[str, WrittenItem] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)

    def add(self, shards: list[RankShard], entries: Mapping[str, DcpEntry]) -> None:
        self.order = [shard.value.key for shard in shards]
        for flat in self.order:
            entry = entries[flat]
            if isinstance(entry, CarriedValue):
                self.items[flat] = WrittenItem(flat, self.carry(entry.item, entry.root))
            elif isinstance(entry, PlainValue):
                self.items[flat] = WrittenItem(flat, self.add_archive(entry.archive))
        for shard in shards:
            entry = entries[shard.value.key]
            if isinstance(entry, CopiedTensor | KnownTensor) and shard.box is not None:
                self._add_tensor(shard.value.key, entry, shard.box)

    def _add_tensor(self, flat: str, entry: CopiedTensor | KnownTensor, box: Box) -> None:
        tensor = entry.tensor
        data = entry.data if isinstance(entry, KnownTensor) else None
        item, start = self.add_chunk(tensor.dtype, box.shape, data)
        if start is not None:
            self.chunks.append((entry.key, Chunk(box, self.prefix + self.name, start)))
        self.items[flat] = WrittenItem(flat, item, tensor.dtype, tensor.shape, box)

    def planned(self, tied: Mapping[str, Sequence[str]]) -> Iterator[WrittenItem]:
        """Yield the values of the file in the order in which torch saves them, not in the order of
        bytes.
        """
        for key in self.order:
            yield self.items[key]
            yield from (replace(self.items[key], key=name) for name in tied.get(key, ()))


@dataclass(frozen=True, slots=True)
class SaveItem:
    """A value to save, tensor or not. `shape` is None for a value that is not a tensor; `nbytes`
    is the size of the whole value in bytes.
    """

    key: str
    shape: tuple[int, ...] | None
    nbytes: int
    sharded: bool


@dataclass(frozen=True, slots=True)
class RankShard:
    """The part of a tensor that one rank saves, and its position `box`. For a value that is not a
    tensor, `box` is None.
    """

    value: SaveItem
    box: Box | None


def shard_box(shape: tuple[int, ...], rank: int, ranks: int) -> Box:
    """Return the rows of a tensor that `rank` of `ranks` ranks holds, as a box. The tensor has at
    least one dimension.
    """
    rows = shape[0]
    step = -(-rows // ranks)
    first, stop = min(rank * step, rows), min((rank + 1) * step, rows)
    return Box((first, *(0 for _ in shape[1:])), (stop - first, *shape[1:]))


def assign_shards(values: Sequence[SaveItem], ranks: int) -> list[list[RankShard]]:
    """Return, for each rank, the shards that torch would save on this rank, in the order of
    `values`.

    FSDP2 splits dimension 0 as torch.chunk does: every rank gets ceil(n / ranks) rows, and the last
    ranks fewer. A rank that gets no row has an empty chunk at row n; DCP saves one such chunk. A
    chunk that several ranks hold is saved by the one to which the fewest bytes are assigned so far;
    for a shard, DCP counts the bytes of the whole tensor
    (torch/distributed/checkpoint/_dedup_save_plans.py, planner.py `tensor_storage_size`).
    """
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
    """Return the ranks that hold the same chunk as `rank`: all ranks if the value is not sharded,
    `rank` and all later ranks if the chunk is empty, else only `rank`.
    """
    if box is None or not value.sharded:
        return range(ranks)
    return range(rank, ranks) if box.shape[0] == 0 else range(rank, rank + 1)
