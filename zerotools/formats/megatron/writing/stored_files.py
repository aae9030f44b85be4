"""The data files of a torch_dist checkpoint, and its `.metadata`.

A chunk is one weight of one layer and one expert, or some rows of it if it is large: Megatron reads
an archive as a whole, even if a rank needs only a part of it. Files are as large as the user wants;
only `.metadata` records their contents.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Chunk, Key, Tensor
from zerotools.core.target import FilePlan
from zerotools.formats.megatron.writing.extra_states import EMPTY
from zerotools.io.distcp.file_names import METADATA
from zerotools.io.distcp.metadata_writer import WrittenItem, metadata_bytes
from zerotools.io.distcp.planned_file import PlannedFile, archive_of
from zerotools.io.output.plain_files import literal

LARGEST_CHUNK = 2**28


@dataclass(frozen=True)
class StoredTensorPlace:
    """A tensor `key`: the part at `index` of the tensor that is stored under each of the keys
    `flats`, which has `counts` parts along its leading axes."""

    key: Key
    tensor: Tensor
    flats: Sequence[str]
    index: tuple[int, ...]
    counts: tuple[int, ...]


@dataclass
class StoredFiles:
    """The files laid out so far, in the directory `prefix` of the output. `tensors` are those of
    the target, by key."""

    prefix: str
    shard_bytes: int
    chunk_bytes: int = LARGEST_CHUNK
    tensors: dict[Key, Tensor] = field(default_factory=dict)
    _files: list[PlannedFile] = field(default_factory=list)
    _items: dict[str, list[WrittenItem]] = field(default_factory=dict)

    def add(self, place: StoredTensorPlace) -> None:
        """Lay one tensor out."""
        tensor = place.tensor
        stored = (*place.counts, *tensor.shape)
        chunks = []
        for box in _pieces(tensor, self.chunk_bytes):
            file = self._file(box.numel * tensor.dtype.itemsize)
            outer = Box((*place.index, *box.start), (*(1 for _ in place.index), *box.shape))
            item, begin = file.add_chunk(tensor.dtype, outer.shape)
            if begin is not None:
                chunks.append(Chunk(box, self.prefix + file.name, begin))
            for flat in place.flats:
                one = WrittenItem(flat, item, tensor.dtype, stored, outer)
                self._items.setdefault(flat, []).append(one)
        self.tensors[place.key] = Tensor(tensor.dtype, tensor.shape, chunks)

    def add_extra_states(self, keys: Sequence[str]) -> None:
        """Add empty states, which all share one archive."""
        if keys:
            item = self._file(0).add_archive(archive_of(EMPTY))
            for key in keys:
                self._items.setdefault(key, []).append(WrittenItem(key, item))

    def plans(self) -> dict[str, FilePlan]:
        """Return the files by name, relative to the output."""
        plans = {self.prefix + file.name: file.plan() for file in self._files}
        written = [item for items in self._items.values() for item in items]
        paths: Mapping[str, tuple[str | int, ...]] = {flat: (flat,) for flat in self._items}
        return {**plans, self.prefix + METADATA: literal(metadata_bytes(written, paths))}

    def _file(self, nbytes: int) -> PlannedFile:
        """Return a file with space for `nbytes`; an empty file always has."""
        if not self._files or (
            self._files[-1].size and self._files[-1].size + nbytes > self.shard_bytes
        ):
            self._files.append(PlannedFile(f"__0_{len(self._files)}.distcp"))
        return self._files[-1]


def _pieces(tensor: Tensor, most: int) -> Iterator[Box]:
    """Yield the tensor in pieces of whole rows of at most `most` bytes, unless a row is larger."""
    if not tensor.shape or not tensor.numel:
        yield Box.whole(tensor.shape)
        return
    rows, others = tensor.shape[0], tensor.shape[1:]
    each = max(1, most // (prod(others) * tensor.dtype.itemsize))
    for first in range(0, rows, each):
        count = min(each, rows - first)
        yield Box((first, *(0 for _ in others)), (count, *others))
