"""Plan one new `.pt` file from its tree, partitions that are copied, and bytes of the source.

The tree is the source's tree with a few values replaced. So every object of an unknown class, every
number and every small tensor stays the same. The storages of tensors that are not replaced are
copied byte by byte, with the CRC-32 in the source's zip, so that damage to them stays visible.
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
from zerotools.io.torchzip import lay_out_archive as archives
from zerotools.io.torchzip.pickle_values import Storage, StoredTensor
from zerotools.io.torchzip.pickle_writer import dumps_renumbered
from zerotools.io.torchzip.pt_file import TorchFile

Gaps = Iterable[tuple[int, int]]


def new_partition(
    key: str, dtype: DType, numel: int, *, requires_grad: bool = False
) -> StoredTensor:
    """Return a flat tensor, alone in a new storage. Its elements are written when tensors are
    copied.

    `key` must be unique in its tree, and must not be a number, like all keys of the source.
    """
    storage = Storage(key, dtype, numel)
    return StoredTensor(storage, dtype, 0, (numel,), (1,), requires_grad)


@dataclass(frozen=True)
class FileDraft:
    """The content of a `.pt` file before it gets a name. Ranks with equal trees share one draft.

    `storages` are the storages of the pickle, keyed by number, and `origins` say where the bytes
    of each storage come from.
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
        """Return the draft of a file with the tree `tree`. The storages of the tree come from
        `new_tensors`, from the file `source`, and from `copies`.

        `copies` maps the key of a copied storage to the storage of the source. `known` maps the key
        of a storage that is in no file to its bytes.
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
        """Return the layout of the file under the name `file`.

        As in torch's archives, the folder in the archive is named after the file, so that a file
        with the name of another rank can be detected.
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
    """The positions of all bytes in one `.pt` file, without the padding of its new partitions.

    `offsets` maps the key of each storage in the tree to its byte offset in the file.
    """

    base: FilePlan
    offsets: Mapping[str, int]
    source: TorchFile | None
    new_storages: Mapping[str, StoredTensor]
    kept: Mapping[str, Storage]

    def plan(self, gaps: Mapping[str, Gaps]) -> FilePlan:
        """Return the plan of the file. `gaps` has (start, count) for each range of padding elements
        in each new partition; these elements become zeros.
        """
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
        """Return a small tensor of the tree, such as `step`, with its position in `file`."""
        offset = self.offsets[stored.storage.key] + stored.offset * stored.dtype.itemsize
        chunk = Chunk(Box.whole(stored.shape), file, offset, stored.strides)
        return Tensor(stored.dtype, stored.shape, [chunk])

    def carried(self, file: str, tensor: Tensor) -> Tensor | None:
        """Return a tensor of the source with its position in `file`, or None if its bytes are not
        copied into this file.
        """
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
    """The planned files of the output, keyed by name, and the tensors in them.

    Attributes:
        tensors: the tensors that are copied element by element.
        carried: the tensors that are part of bytes copied unchanged from the source.
        sources: key of a tensor -> its tensor in the source, if the tensor has another name there.
    """

    plans: Mapping[str, FilePlan]
    tensors: Mapping[Key, Tensor]
    carried: Mapping[Key, Tensor]
    sources: Mapping[Key, Tensor]


REPEATED = " of rank "
"""A mark that is added to the role of a tensor that repeats another tensor. Readers do not list
such a tensor.
"""


def carried_tensors(
    held: Mapping[Key, Tensor], elsewhere: Collection[Key], files: Mapping[str, FileLayout]
) -> dict[Key, Tensor]:
    """Return the tensors of `held` at their positions in the output. The files `files` copy their
    bytes unchanged from the source. Keys in `elsewhere` are left out.
    """
    found = {}
    for key, tensor in held.items():
        if key in elsewhere:
            continue
        moved = (output.carried(file, tensor) for file, output in files.items())
        place = next((there for there in moved if there is not None), None)
        if place is None:
            raise BadFile(
                f"{next(iter(files))}: {key} is in none of the files that are copied unchanged"
            )
        found[key] = place
    return found
