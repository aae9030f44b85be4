"""Finds the bytes of a tensor in a DCP item, which is a torch.save archive.

`.metadata` alone is enough to list a checkpoint, and a large checkpoint has millions of items. So
an item is opened only when a chunk of its tensor is accessed.

`DerivedChunks` are the chunks of a tensor that is made from parts of stored tensors, as with
megatron-core. It stores the layers of a model stacked in one tensor. Each stored chunk is then a
row-major box, and one layer of it is a box again: in a stored chunk with the box [2:4, 0:8, 0:6],
layer 3 is the box [0:8, 0:6] from element 48. Versions up to 0.15 store optimizer state in flat
parts; such a part is a range of a flattened box, which is at most 2n-1 boxes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, cast, overload

from zerotools.core.boxes import Box, row_major_strides
from zerotools.core.checkpoint import Checkpoint, Chunk
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadFile, Unsupported
from zerotools.io.distcp.metadata import Item, Metadata
from zerotools.io.files.open_files import OpenFiles
from zerotools.io.files.open_source import FarSource, RemotePath
from zerotools.io.files.regular_files import open_source
from zerotools.io.files.source_stamps import record_open_source
from zerotools.io.torchzip.archive import Archive
from zerotools.io.torchzip.file_range import FileRange
from zerotools.io.torchzip.pickle_values import StoredTensor, kind_text
from zerotools.io.torchzip.tree_tensors import why_unread
from zerotools.io.torchzip.unpickle import loads
from zerotools.io.torchzip.zip_directory import read_entry

_LARGEST_TENSOR_PICKLE = 2**16
# The first and last bytes of an archive contain everything except the values of its tensor.
_END_BYTES = 2**10
# Each rank has a separate file, and most of them have an archive of every tensor.
_OPEN_FILES = 16
_LARGEST_KNOWN, _LONGEST_KNOWN, _MOST_KNOWN = 2**12, 16, 2**10


class Items:
    """Finds the tensors in the items of one checkpoint.

    `inspect` and `plan` use the chunks of one tensor several times in a row, so the last few
    thousand chunks are cached. All chunks of a large checkpoint would fill the memory.
    """

    def __init__(self, root: Path, metadata: Metadata | None) -> None:
        """Prepare to open items below `root`. No file is opened yet.

        `metadata` has the positions of all items. It is needed only for a checkpoint in an object
        store.
        """
        self._files = OpenFiles(root, most=_OPEN_FILES)
        self._made_of = (root, metadata if isinstance(root, RemotePath) else None)
        ends = None if self._made_of[1] is None else _Ends(self._made_of[1])
        # The cache is not around a method: it would then refer to this object, and keep the files
        # open until the next garbage collection.
        self.chunk = lru_cache(maxsize=4096)(partial(_chunk, root, self._files, ends))

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle only the arguments of the constructor, because open files cannot be pickled."""
        return Items, self._made_of

    def __del__(self) -> None:
        self._files.close()


class _Ends:
    """Byte ranges at the beginning and the end of each archive in an object store.

    The ranges of all archives in a file are requested together, when the first archive of the file
    is opened.
    """

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._places: dict[str, list[tuple[int, int]]] | None = None

    def of(self, file: str) -> list[tuple[int, int]]:
        """Return the byte ranges in `file` as [begin, end). The list is empty at the second call
        for the same file, because the ranges were requested before.
        """
        if self._places is None:
            self._places = {}
            for _, item in self._metadata.items:
                begin, end = item.offset, item.offset + item.length
                count = min(_END_BYTES, item.length)
                ends = ((begin, begin + count), (end - count, end))
                self._places.setdefault(item.file, []).extend(ends)
        return self._places.pop(file, [])


def _chunk(
    root: Path, files: OpenFiles, ends: _Ends | None, key: str, dtype: DType, box: Box, item: Item
) -> Chunk:
    """Open `item`, and return the chunk of the tensor `key` that it contains.

    Raises:
        BadFile: the item is damaged, or has another shape or dtype than in `.metadata`.
        Unsupported: the item is not an uncompressed torch.save archive.
    """
    with files.source(item.file) as source:
        path = root / item.file
        record_open_source(path, source.status)
        if ends is not None and (places := ends.of(item.file)):
            cast(FarSource, source).expect(places)
        window = FileRange(source, path, item.offset, item.length)
        archive = Archive.open(window.keeping_ends(_END_BYTES))
        tensor = _tensor(archive, key)
        _check_agrees(window, key, dtype, box, tensor)
        at = archive.payload(tensor.storage) + tensor.offset * dtype.itemsize
    chunk = Chunk(box, item.file, at, tensor.strides)
    return Chunk(box, item.file, at) if chunk.is_contiguous else chunk


class ItemChunks(Sequence[Chunk]):
    """The chunks of one tensor. The item of a chunk is opened only when the chunk is accessed; this
    access may raise the errors of `_chunk`.
    """

    def __init__(
        self, items: Items, key: str, dtype: DType, parts: Sequence[tuple[Box, Item]]
    ) -> None:
        self._items = items
        self._key = key
        self._dtype = dtype
        self._parts = parts

    def __len__(self) -> int:
        return len(self._parts)

    @overload
    def __getitem__(self, index: int) -> Chunk: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Chunk]: ...
    def __getitem__(self, index: int | slice) -> Chunk | Sequence[Chunk]:
        if isinstance(index, slice):
            return [self._find(*part) for part in self._parts[index]]
        return self._find(*self._parts[index])

    def __iter__(self) -> Iterator[Chunk]:
        for box, item in self._parts:
            yield self._find(box, item)

    def items(self) -> Iterator[Item]:
        """For each chunk in order, yield the item that contains it."""
        return (item for _, item in self._parts)

    def item(self, number: int) -> Item:
        """Return the item that contains chunk `number`."""
        return self._parts[number][1]

    @property
    def boxes(self) -> Sequence[Box]:
        """The boxes of all chunks. No archive is opened for them."""
        return [box for box, _ in self._parts]

    def box(self, number: int) -> Box:
        """Return the box of chunk `number`."""
        return self._parts[number][0]

    def _find(self, box: Box, item: Item) -> Chunk:
        return self._items.chunk(self._key, self._dtype, box, item)


def _tensor(archive: Archive, key: str) -> StoredTensor:
    window, record = archive.window, archive.records["data.pkl"]
    if record.length > _LARGEST_TENSOR_PICKLE:
        raise BadFile(
            f"{window}: the pickle of {key} has {record.length} bytes, but the pickle of a tensor "
            f"has at most {_LARGEST_TENSOR_PICKLE}; copy or download the file again"
        )
    try:
        tensor = _tree(read_entry(window, record))
    except (BadFile, Unsupported) as error:
        raise type(error)(f"{window}: {error}") from None
    if not isinstance(tensor, StoredTensor):
        if (why := why_unread(tensor)) is not None:
            raise Unsupported(f"{window}: {key} is {why}")
        raise BadFile(
            f"{window} holds {kind_text(tensor)} instead of the tensor {key}; copy or download the "
            "file again"
        )
    return tensor


@lru_cache(maxsize=1024)
def _tree(data: bytes) -> Any:
    """Unpickle `data`, the pickle of a tensor, and return its tree. Results are cached, because
    most pickles in a checkpoint have the same bytes.
    """
    return loads(data, source="data.pkl")


class _opened:
    """Opens the file of an item in a `with` block, and gives the item's byte range in the file."""

    def __init__(self, root: Path, item: Item) -> None:
        self._path = root / item.file
        self._item = item

    def __enter__(self) -> FileRange:
        try:
            self._source = open_source(self._path)
        except FileNotFoundError:
            raise BadFile(
                f"{self._path} is missing, but the metadata lists it; copy or download it again"
            ) from None
        except OSError as error:
            raise BadFile(f"{self._path} cannot be opened: {error.strerror}") from None
        return FileRange(self._source, self._path, self._item.offset, self._item.length)

    def __exit__(self, *_: object) -> None:
        self._source.close()


def _check_agrees(
    window: FileRange, key: str, dtype: DType, box: Box, tensor: StoredTensor
) -> None:
    if tensor.dtype != dtype or tensor.shape != box.shape:
        raise BadFile(
            f"{window} holds {tensor.dtype} of shape {tensor.shape}, but the metadata has {dtype} "
            f"of shape {box.shape} for {key}: they are from different saves; take another "
            "checkpoint"
        )
    if any(step == 0 and n > 1 for n, step in zip(tensor.shape, tensor.strides, strict=True)):
        raise BadFile(
            f"{window}: {key} has a stride of 0, so it would repeat its elements; save it "
            "contiguous"
        )


def archives_of(checkpoint: Checkpoint) -> dict[str, dict[int, int]]:
    """Return the positions of the archives of all tensors: {file: {offset: length}}, in bytes."""
    found = {file: dict(known) for file, known in checkpoint.archives.items()}
    for tensor in checkpoint.tensors.values():
        if isinstance(tensor.chunks, ItemChunks):
            for item in tensor.chunks.items():
                found.setdefault(item.file, {})[item.offset] = item.length
    return found


class BlobTrees(Mapping[str, Any]):
    """The values of a checkpoint that are not tensors, keyed by flat key. Each is read when it is
    accessed.

    In a large checkpoint most of these values have the same bytes as another value, for example the
    options of each parameter. Usually equal bytes are unpickled only once.
    """

    def __init__(self, root: Path, blobs: Mapping[str, Item]) -> None:
        self._root = root
        self._blobs = blobs
        self._known: dict[bytes, Any] = {}

    def __len__(self) -> int:
        return len(self._blobs)

    def __iter__(self) -> Iterator[str]:
        return iter(self._blobs)

    def __contains__(self, key: object) -> bool:
        return key in self._blobs  # the keys are known without reading a value

    def places(self) -> Iterable[Item]:
        """Return the items in which the values are stored."""
        return self._blobs.values()

    def __getitem__(self, key: str) -> Any:
        with _opened(self._root, self._blobs[key]) as window:
            if window.length > _LARGEST_KNOWN:
                return Archive.open(window).tree()
            data = window.read(0, window.length)
            if data in self._known:
                return self._known[data]
            tree = Archive.open(window).tree()
        if len(self._known) < _MOST_KNOWN and _is_constant(tree):
            self._known[data] = tree
        return tree


def _is_constant(value: Any) -> bool:
    """Return whether a value is immutable: a plain value, or a tuple of a few plain values."""
    parts = value if isinstance(value, tuple) and len(value) < _LONGEST_KNOWN else (value,)
    return all(part is None or isinstance(part, bool | int | float | str) for part in parts)


def refuse_safetensors(path: Path, key: str, item: Item, nbytes: int) -> None:
    """Raise an error if `item` is too short to be an archive of its tensor.

    With SerializationFormat.SAFETENSORS torch records the same offset for every tensor of a file,
    and as the length only the size of the tensor's elements. So the tensor cannot be found, and
    torch itself cannot load it.
    """
    if item.length <= nbytes:
        raise Unsupported(
            f"{path}: {key} needs {nbytes} bytes, but its item has {item.length}, so it is not a "
            "torch.save archive, and zerotools does not read the form "
            "SerializationFormat.SAFETENSORS; save the checkpoint with TORCH_SAVE"
        )


class StoredPiece(NamedTuple):
    """A part of a stored chunk, which becomes the box `box` of a new tensor.

    Attributes:
        source, number: the part belongs to chunk `number` of the tensor `source`.
        start: the index of the part's first element, relative to the first element of the chunk.
        is_flat: True if the part is a sequence of elements along the last dimension of the chunk.
            If False, the dimensions of the part are the last dimensions of the chunk.
    """

    source: ItemChunks
    number: int
    start: tuple[int, ...]
    box: Box
    is_flat: bool = False


class DerivedChunks(ItemChunks):
    """The chunks of one tensor of dtype `dtype` that is made from parts of stored tensors.

    The function `pieces` returns these parts, and is called at each access. An access to a chunk
    may raise the errors of `_chunk`.
    """

    def __init__(self, dtype: DType, pieces: Callable[[], Sequence[StoredPiece]]) -> None:
        self._type = dtype
        self._pieces = pieces

    def __len__(self) -> int:
        return len(self._pieces())

    @overload
    def __getitem__(self, index: int) -> Chunk: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Chunk]: ...
    def __getitem__(self, index: int | slice) -> Chunk | Sequence[Chunk]:
        if isinstance(index, slice):
            return [self._made(piece) for piece in self._pieces()[index]]
        return self._made(self._pieces()[index])

    def __iter__(self) -> Iterator[Chunk]:
        return map(self._made, self._pieces())

    def items(self) -> Iterator[Item]:
        """For each chunk in order, yield the item that contains it. An item with several chunks is
        yielded several times."""
        return (piece.source.item(piece.number) for piece in self._pieces())

    def item(self, number: int) -> Item:
        """Return the item that contains chunk `number`."""
        piece = self._pieces()[number]
        return piece.source.item(piece.number)

    @property
    def boxes(self) -> Sequence[Box]:
        """The boxes of all chunks. No archive is opened for them."""
        return [piece.box for piece in self._pieces()]

    def box(self, number: int) -> Box:
        """Return the box of chunk `number`."""
        return self._pieces()[number].box

    def _made(self, piece: StoredPiece) -> Chunk:
        stored = piece.source[piece.number]
        strides = stored.strides or row_major_strides(stored.box.shape)
        skipped = sum(a * b for a, b in zip(piece.start, strides, strict=True))
        offset = stored.offset + skipped * self._type.itemsize
        if piece.is_flat:
            if strides[-1] != 1 and piece.box.numel > 1:
                raise Unsupported(
                    f"{stored.file}: the elements of a flat part, from byte {offset} on, are "
                    "not contiguous; zerotools reads only contiguous elements"
                )
            return Chunk(piece.box, stored.file, offset)
        kept = strides[len(strides) - len(piece.box.shape) :]
        chunk = Chunk(piece.box, stored.file, offset, kept)
        return Chunk(piece.box, stored.file, offset) if chunk.is_contiguous else chunk
