"""Write one new `.pt` file: its tree, the partitions that are copied, and bytes of the source.

The tree is that of the source with a few values replaced, so every foreign object, number and small
tensor stays the same. Tensors that are not replaced keep their storages, byte by byte and with the
CRC-32 of the source's zip, so that damage stays visible.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any
from zlib import crc32

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Chunk, Key, Tensor
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadFile
from zerotools.core.target import CarriedBytes, Checksum, FilePlan, LiteralBytes, ZeroBytes
from zerotools.formats.deepspeed.schema.optim_states import FlatPartition
from zerotools.io.torchzip import archive_layout as archives
from zerotools.io.torchzip.pickle_values import Storage, StoredTensor
from zerotools.io.torchzip.pickle_writer import dumps_renumbered
from zerotools.io.torchzip.pt_file import TorchFile

Gaps = Iterable[tuple[int, int]]


def new_partition(
    key: str, dtype: DType, numel: int, *, requires_grad: bool = False
) -> StoredTensor:
    """Return a flat tensor in a new storage, which copies fill.

    `key` is unique in its tree, and not a number, so that it differs from the source's keys.
    """
    storage = Storage(key, dtype, numel)
    return StoredTensor(storage, dtype, 0, (numel,), (1,), requires_grad)


@dataclass(frozen=True)
class FileDraft:
    """The content of a file without its name; ranks with equal trees share one draft.

    `storages` are those of the pickle by number, and `origins` the sources of their bytes.
    """

    pickle: bytes
    storages: Sequence[Storage]
    origins: Sequence[Storage]
    crcs: Mapping[int, int]
    data: Mapping[int, bytes]
    source: TorchFile | None
    new_storages: Mapping[str, StoredTensor]
    kept: Mapping[str, Storage]

    @classmethod
    def of(
        cls,
        tree: Any,
        source: TorchFile | None,
        new_tensors: Iterable[StoredTensor],
        copies: Mapping[str, Storage] = MappingProxyType({}),
        known: Mapping[str, bytes] = MappingProxyType({}),
    ) -> FileDraft:
        """Return the draft of `tree`, with the storages of `new_tensors`, of `source` and of
        copies.

        `copies` maps the key of a copy to a storage of the source. `known` are the bytes of
        storages that are in no file.
        """
        new = {tensor.storage.key: tensor for tensor in new_tensors}
        records = source.records if source is not None else {}
        pickle, storages = dumps_renumbered(tree)
        origins = [copies.get(storage.key, storage) for storage in storages]
        crcs = {
            number: records[f"data/{storage.key}"].crc
            for number, storage in enumerate(origins)
            if storage.key not in new and f"data/{storage.key}" in records
        }
        data = {number: known[each.key] for number, each in enumerate(origins) if each.key in known}
        crcs |= {number: crc32(each) for number, each in data.items()}
        kept = {
            storage.key: storage
            for storage in storages
            if storage.nbytes
            and not (storage.key in new or storage.key in copies or storage.key in known)
        }
        return cls(pickle, storages, origins, crcs, data, source, new, kept)

    def at(self, file: str) -> FileLayout:
        """Return the layout of the file with this name.

        The folder in the archive has the file's name, as torch's archives do, so that a file under
        another rank's name is detected.
        """
        sizes = [storage.nbytes for storage in self.storages]
        folder = PurePosixPath(file).stem
        layout = archives.lay_out(self.pickle, sizes, self.crcs, folder=folder)
        literals = [LiteralBytes(at, each) for at, each in layout.literals]
        full = [(i, storage) for i, storage in enumerate(self.storages) if storage.nbytes]
        offsets, carried, checksums = {}, [], []
        for (number, storage), at in zip(full, layout.payloads, strict=True):
            offsets[storage.key] = at.offset
            if number in self.data:
                literals.append(LiteralBytes(at.offset, self.data[number]))
            elif storage.key not in self.new_storages:
                assert self.source is not None, f"{storage.key} is in no file"
                begin = self.source.payload(self.origins[number])
                carried.append(CarriedBytes(at.offset, self.source.path, begin, at.length))
            if number not in self.crcs:
                checksums.append(Checksum(at.offset, at.length, at.crc_at))
        plan = FilePlan(layout.length, literals, carried, checksums)
        return FileLayout(plan, offsets, self.source, self.new_storages, self.kept)


@dataclass(frozen=True)
class FileLayout:
    """The layout of a file, without the padding of its new partitions.

    `offsets` has the offset of each storage, by its key in the tree.
    """

    base: FilePlan
    offsets: Mapping[str, int]
    source: TorchFile | None
    new_storages: Mapping[str, StoredTensor]
    kept: Mapping[str, Storage]

    def plan(self, gaps: Mapping[str, Gaps]) -> FilePlan:
        """Return the file plan; `(start, count)` are the padding elements of each new partition."""
        zeros = list(self._zeros(gaps))
        plan = self.base
        return FilePlan(plan.size, plan.literals, plan.carried, plan.checksums, zeros)

    def _zeros(self, gaps: Mapping[str, Gaps]) -> Iterator[ZeroBytes]:
        for key, runs in gaps.items():
            dtype = self.new_storages[key].dtype
            for start, count in runs:
                yield ZeroBytes(self.offsets[key] + start * dtype.itemsize, count * dtype.itemsize)

    def partition(self, file: str, tensor: StoredTensor) -> FlatPartition:
        """Return the position of a new partition in `file`, a file with this layout."""
        offset = self.offsets.get(tensor.storage.key, 0)
        return FlatPartition(file, offset, tensor.shape[0], tensor.dtype)

    def placed(self, file: str, stored: StoredTensor) -> Tensor:
        """Return the position of a small tensor of the tree in `file`."""
        offset = self.offsets[stored.storage.key] + stored.offset * stored.dtype.itemsize
        chunk = Chunk(Box.whole(stored.shape), file, offset, stored.strides)
        return Tensor(stored.dtype, stored.shape, [chunk])

    def carried(self, file: str, tensor: Tensor) -> Tensor | None:
        """Return the position of a source's tensor in `file`, or None if its bytes are not
        copied."""
        chunks = [self._moved(file, chunk) for chunk in tensor.chunks]
        moved = [chunk for chunk in chunks if chunk is not None]
        if len(moved) < len(chunks):
            return None
        return Tensor(tensor.dtype, tensor.shape, moved)

    def _moved(self, file: str, chunk: Chunk) -> Chunk | None:
        if self.source is None or chunk.file != self.source.name:
            return None
        if chunk.box.is_empty:
            return Chunk(chunk.box, file, 0, chunk.strides)
        for key, storage in self.kept.items():
            begin = self.source.payload(storage)
            if begin <= chunk.offset < begin + storage.nbytes:
                offset = self.offsets[key] + chunk.offset - begin
                return Chunk(chunk.box, file, offset, chunk.strides)
        return None


@dataclass(frozen=True)
class OutputFiles:
    """The files of the output by name, and their tensors.

    There are tensors to copy, tensors in bytes of the source, and the sources of tensors that only
    the output has under their names.
    """

    plans: Mapping[str, FilePlan]
    tensors: Mapping[Key, Tensor]
    carried: Mapping[Key, Tensor]
    sources: Mapping[Key, Tensor]


REPEATED = " of rank "
"""The mark in the role of a tensor that repeats another; readers do not list it."""


def carried_tensors(
    held: Mapping[Key, Tensor], elsewhere: Collection[Key], files: Mapping[str, FileLayout]
) -> dict[Key, Tensor]:
    """Return the positions of tensors in the bytes that `files` copy from the source, without those
    `elsewhere`."""
    found = {}
    for key, tensor in held.items():
        if key in elsewhere:
            continue
        moved = (output.carried(file, tensor) for file, output in files.items())
        place = next((there for there in moved if there is not None), None)
        if place is None:
            raise BadFile(f"{next(iter(files))}: {key} is not in any file that is carried over")
        found[key] = place
    return found
