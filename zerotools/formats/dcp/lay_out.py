"""A DCP directory for any number of ranks, laid out as torch would save it there.

Each rank's file holds torch.save archives back to back, first the values that are no tensors (their
bytes are carried over, never pickled again), then its chunks. A job's checkpoint gets its record,
its companions and, when all files are there, its manifest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from pathlib import Path

from zerotools.core.boxes import Box, row_major_strides
from zerotools.core.checkpoint import (
    Carried,
    Checkpoint,
    Checksum,
    Chunk,
    FilePlan,
    Key,
    Literal,
    Origin,
    Target,
    Tensor,
)
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadRequest
from zerotools.formats.dcp.directories import DIRECTORIES, METADATA, lay_out_each
from zerotools.formats.dcp.jobcheckpoint import DCP, RECORD, JobRecord
from zerotools.formats.dcp.jobrecord import record_to_json
from zerotools.formats.dcp.metadata import Item
from zerotools.formats.dcp.shards import Shard, Value, assign
from zerotools.formats.dcp.write_metadata import Written, metadata_bytes
from zerotools.io.manifest import write_manifest
from zerotools.io.torchzip.lay_out import Layout
from zerotools.io.torchzip.lay_out import lay_out as lay_out_archive
from zerotools.io.torchzip.pickles import dumps
from zerotools.io.torchzip.values import Storage, StoredTensor


def lay_out(source: Checkpoint, destination: Path, *, world_size: int) -> Target:
    """Lay `source` out for `world_size` ranks in `destination`.

    Only the shapes and types of its tensors, its flat keys and the other values of its files are
    looked at, so the source's chunks may lie in any way. A source that is a job's checkpoint makes
    one: `dcp/`, job.json with the new world size and random numbers to be seeded afresh, its
    companions, and a manifest; one of several directories makes as many.

    Raises:
        BadRequest: `world_size` is less than 1.
    """
    if world_size < 1:
        raise BadRequest(f"a checkpoint is laid out for at least 1 rank, not {world_size}")
    if DIRECTORIES in source.origin.details:
        return lay_out_each(source, destination, partial(lay_out, world_size=world_size))
    job = source.origin.details.get("job")
    prefix = f"{DCP}/" if isinstance(job, JobRecord) else ""
    flat = _flat_keys(source)
    files = [_File(f"__{rank}_0.distcp", prefix) for rank in range(world_size)]
    for file, shards in zip(files, assign(_values(source, flat), world_size), strict=True):
        file.add(shards, source, flat)
    written = [one for file in files for one in file.planned()]
    plans = {prefix + file.name: file.plan() for file in files}
    plans[prefix + METADATA] = _literal(metadata_bytes(written, _paths(source, flat)))
    if isinstance(job, JobRecord):
        plans |= _job_files(source, job.resharded(world_size))
    checkpoint = replace(
        source,
        root=destination,
        tensors=_tensors(source, files),
        origin=_origin(source, destination, world_size),
        files={name: plan.size for name, plan in plans.items()},
        state={},
        companions={},
        problems=(),
    )
    if not isinstance(job, JobRecord):
        return Target(checkpoint, plans)
    return Target(checkpoint, plans, _seal, _notes(job, world_size))


def _seal(directory: Path) -> None:
    write_manifest(directory)


def _notes(job: JobRecord, world_size: int) -> tuple[str, ...]:
    return (
        f"the random number state of {job.world_size} ranks is not carried over: the run seeds "
        f"{world_size} afresh from its seed and step",
    )


def _flat_keys(source: Checkpoint) -> dict[str, Key]:
    """The tensors by the flat key that each had, or would have in a job's checkpoint."""
    known: Mapping[Key, str] = source.origin.details.get("dcp_keys", {})
    return {known.get(key) or _flat_key(key): key for key in source.tensors}


def _flat_key(key: Key) -> str:
    weights = key.role in ("param", "buffer")
    return f"model.{key.name}" if weights else f"optim.{key.name}.{key.role}"


def _blobs(source: Checkpoint) -> Mapping[str, Item]:
    blobs: Mapping[str, Item] = source.origin.details.get("blobs", {})
    return blobs


def _paths(
    source: Checkpoint, flat: Mapping[str, Key]
) -> Mapping[str, tuple[str | int, ...]] | None:
    details = source.origin.details
    if "planner_data" not in details:
        return {key: (key,) for key in flat}
    paths: Mapping[str, tuple[str | int, ...]] | None = details["planner_data"]
    return paths


def _values(source: Checkpoint, flat: Mapping[str, Key]) -> list[Value]:
    """Everything to save, in the order of the state dict that was saved."""
    blobs = _blobs(source)
    order = (*(_paths(source, flat) or ()), *source.origin.details.get("order", ()), *flat, *blobs)
    values = []
    for key in dict.fromkeys(order):
        if key in flat:
            tensor = source.tensors[flat[key]]
            sharded = not _is_replicated(source, key, tensor)
            values.append(Value(key, tensor.shape, tensor.nbytes, sharded))
        elif key in blobs:
            values.append(Value(key, None, 0, sharded=False))
    return values


def _is_replicated(source: Checkpoint, flat: str, tensor: Tensor) -> bool:
    """Whether every rank holds the whole tensor: as the job's record says; else what several
    ranks saved as one chunk, though it has more rows than one."""
    if not tensor.shape:
        return True
    job = source.origin.details.get("job")
    if isinstance(job, JobRecord):
        return job.stage == 0 or flat in job.replicated
    ranks = source.origin.world_size or 1
    return ranks > 1 and tensor.shape[0] > 1 and len(tensor.chunks) == 1


@dataclass
class _File:
    """One rank's file while it is laid out. `prefix` is the directory below the root."""

    name: str
    prefix: str
    size: int = 0
    literals: list[Literal] = field(default_factory=list)
    carried: list[Carried] = field(default_factory=list)
    checksums: list[Checksum] = field(default_factory=list)
    chunks: list[tuple[Key, Chunk]] = field(default_factory=list)
    items: dict[str, Written] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)

    def add(self, shards: list[Shard], source: Checkpoint, flat: Mapping[str, Key]) -> None:
        blobs = _blobs(source)
        self.order = [shard.value.key for shard in shards]
        for shard in shards:
            if shard.box is None:
                self._add_blob(shard.value.key, blobs[shard.value.key], source.root)
        for shard in shards:
            if shard.box is not None:
                key = flat[shard.value.key]
                self._add_chunk(shard.value.key, key, source.tensors[key], shard.box)

    def _add_blob(self, flat: str, item: Item, root: Path) -> None:
        self.carried.append(Carried(self.size, root / item.file, item.offset, item.length))
        self.items[flat] = Written(flat, self._take(item.length))

    def _add_chunk(self, flat: str, key: Key, tensor: Tensor, box: Box) -> None:
        layout, begin = _archive(tensor.dtype, box.shape), self.size
        self.literals += (Literal(begin + at, data) for at, data in layout.literals)
        for payload in layout.payloads:
            start = begin + payload.offset
            crc_at = tuple(begin + at for at in payload.crc_at)
            self.checksums.append(Checksum(start, payload.length, crc_at))
            self.chunks.append((key, Chunk(box, self.prefix + self.name, start)))
        item = self._take(layout.length)
        self.items[flat] = Written(flat, item, tensor.dtype, tensor.shape, box)

    def _take(self, length: int) -> Item:
        item = Item(self.name, self.size, length)
        self.size += length
        return item

    def planned(self) -> Iterator[Written]:
        """The file's items in the order in which they were planned, not that of their bytes."""
        return (self.items[key] for key in self.order)

    def plan(self) -> FilePlan:
        return FilePlan(self.size, self.literals, self.carried, self.checksums)


@lru_cache(maxsize=4096)
def _archive(dtype: DType, shape: tuple[int, ...]) -> Layout:
    """The archive of one contiguous tensor, the same for every chunk of that type and shape."""
    nbytes = Tensor(dtype, shape, ()).nbytes
    if dtype.torch_storage is None:
        storage = Storage("0", None, nbytes)
    else:
        storage = Storage("0", dtype, nbytes // dtype.itemsize)
    tensor = StoredTensor(storage, dtype, 0, shape, row_major_strides(shape))
    return lay_out_archive(dumps(tensor), [nbytes])


def _tensors(source: Checkpoint, files: list[_File]) -> dict[Key, Tensor]:
    chunks: dict[Key, list[Chunk]] = {key: [] for key in source.tensors}
    for file in files:
        for key, chunk in file.chunks:
            chunks[key].append(chunk)
    return {
        key: Tensor(tensor.dtype, tensor.shape, chunks[key])
        for key, tensor in source.tensors.items()
    }


def _origin(source: Checkpoint, destination: Path, world_size: int) -> Origin:
    return replace(source.origin, format="dcp", path=destination, world_size=world_size, notes=())


def _job_files(source: Checkpoint, record: JobRecord) -> dict[str, FilePlan]:
    plans = {RECORD: _literal(record_to_json(record).encode())}
    for name, path in source.companions.items():
        size = path.stat().st_size
        plans[name] = FilePlan(size, carried=[Carried(0, path, 0, size)])
    return plans


def _literal(data: bytes) -> FilePlan:
    return FilePlan(len(data), [Literal(0, data)])
