"""Read and write uncompressed zarr 2 arrays: directories with `.zarray` and one file per chunk.

    params.params.w/.zarray    dtype, shape, and shape of a chunk
    params.params.w/1.0        the elements of the chunk with index (1, 0), row-major

The position of every element in a file is known, so such arrays are read and written like other
formats, without TensorStore. All chunk files have the same size: a chunk at the edge is filled up
with zeros.

Source: zarr's specification, version 2; TensorStore's driver `zarr`, for names of dtypes that numpy
does not have.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Chunk, ChunksOnDemand, Tensor
from zerotools.core.dtypes import BOOL, DTYPES, DType
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.io.files.read_json import read_json

METADATA = ".zarray"
_MOST_BYTES = 2**20
_MOST_CHUNKS = 100_000
_KINDS = {"float": "f", "int": "i", "uint": "u", "complex": "c"}
_UNSTORED = ("float8_e8m0fnu",)
"""Types that TensorStore does not have."""


def _type_word(dtype: DType) -> str:
    """Return zarr's name for a dtype: numpy's code ("<f4"), or TensorStore's name ("bfloat16")."""
    if dtype == BOOL:
        return "|b1"
    kind = _KINDS.get(dtype.name.rstrip("0123456789"))
    if kind is None or dtype.name.startswith("bfloat"):
        return dtype.name
    return f"{'|' if dtype.itemsize == 1 else '<'}{kind}{dtype.itemsize}"


_WORDS = {_type_word(dtype): dtype for dtype in DTYPES if dtype.name not in _UNSTORED}


@dataclass(frozen=True, slots=True)
class PlainArray:
    """An array in the directory `name` of an item; `chunk` is the shape of a chunk.

    The end of the array may cut off a chunk only along the first dimension in which a full chunk
    has more than one element. So the elements of every chunk are at the beginning of its file.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    chunk: tuple[int, ...]

    @property
    def file_bytes(self) -> int:
        """The size of each chunk file in bytes."""
        return math.prod(self.chunk) * self.dtype.itemsize

    @property
    def metadata(self) -> bytes:
        """The content of `.zarray`."""
        tree = {
            "chunks": self.chunk,
            "compressor": None,
            "dimension_separator": ".",
            "dtype": _type_word(self.dtype),
            "fill_value": None,
            "filters": None,
            "order": "C",
            "shape": self.shape,
            "zarr_format": 2,
        }
        return json.dumps(tree, separators=(",", ":")).encode()

    def each_chunk(self) -> Iterator[Chunk]:
        """Yield the chunks, in the order of their indices; file names are relative to the item."""
        counts = (-(-n // c) for n, c in zip(self.shape, self.chunk, strict=True))
        for index in product(*map(range, counts)):
            start = tuple(at * c for at, c in zip(index, self.chunk, strict=True))
            ends = zip(start, self.chunk, self.shape, strict=True)
            box = Box(start, tuple(min(c, n - at) for at, c, n in ends))
            yield Chunk(box, f"{self.name}/{'.'.join(map(str, index)) or '0'}", 0)

    def tensor(self, files: frozenset[str] | None = None) -> Tensor:
        """Return the tensor of the array, with the chunks that `files` contain or, if `files` is
        None, with all chunks."""

        def chunks() -> list[Chunk]:
            return [each for each in self.each_chunk() if files is None or each.file in files]

        return Tensor(self.dtype, self.shape, ChunksOnDemand(chunks))


def cut_in_chunks(name: str, tensor: Tensor, most_bytes: int) -> PlainArray:
    """Return the array `name` for the elements of `tensor`, in chunks of at most `most_bytes`.

    The array is cut along its first dimensions, so that each chunk is contiguous in the tensor. All
    chunks have about the same size.

    Raises:
        BadRequest: a chunk would be smaller than an element, or there would be too many chunks.
        Unsupported: the tensor has no elements, or a type that TensorStore does not have.
    """
    if not tensor.numel:
        raise Unsupported(
            f"{name} has shape {list(tensor.shape)}, and Orbax does not store arrays without "
            "elements; leave it out of the checkpoint"
        )
    if tensor.dtype.name in _UNSTORED:
        raise Unsupported(
            f"{name} is {tensor.dtype}, which TensorStore cannot store; choose another dtype with "
            "--dtype"
        )
    chunk = list(tensor.shape)
    left = tensor.nbytes
    for dim, count in enumerate(tensor.shape):
        if left <= most_bytes:
            break
        row = left // count
        parts = -(-count // max(1, most_bytes // row))
        chunk[dim] = -(-count // parts)
        left = chunk[dim] * row
    made = PlainArray(name, tensor.dtype, tensor.shape, tuple(chunk))
    count = math.prod(-(-n // c) for n, c in zip(made.shape, made.chunk, strict=True))
    if left > most_bytes:
        raise BadRequest(
            f"an element of {name} has {tensor.dtype.itemsize} bytes, but a file may have only "
            f"{most_bytes} bytes; choose a larger --max-shard-size"
        )
    if count > _MOST_CHUNKS:
        raise BadRequest(
            f"{name} has {tensor.nbytes} bytes and needs {count} files of {most_bytes} bytes, but "
            f"zerotools writes at most {_MOST_CHUNKS} files for a tensor; choose a larger "
            "--max-shard-size"
        )
    return made


def read_plain_array(directory: Path, name: str) -> PlainArray | None:
    """Return the array `name` in the item at `directory`.

    Return None if the positions of its elements in files are unknown, because the array is
    compressed or not in row-major order, or if `.zarray` is not readable.
    """
    try:
        tree = read_json(directory / name / METADATA, _MOST_BYTES)
        dtype = _WORDS[tree["dtype"]]
        shape, chunk = tuple(tree["shape"]), tuple(tree["chunks"])
        others = (tree["compressor"], tree.get("filters"), tree["order"], tree["zarr_format"])
        separator = tree.get("dimension_separator", ".")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    if others != (None, None, "C", 2) or separator != "." or len(shape) != len(chunk):
        return None
    sizes = (*shape, *chunk)
    if not all(type(n) is int and 0 < n < 2**48 for n in sizes):
        return None
    if math.prod(-(-n // c) for n, c in zip(shape, chunk, strict=True)) > _MOST_CHUNKS:
        return None
    first = next((dim for dim, count in enumerate(chunk) if count > 1), len(shape))
    if any(n % c for n, c in zip(shape[first + 1 :], chunk[first + 1 :], strict=True)):
        return None
    return PlainArray(name, dtype, shape, chunk)
