"""Read and check the header of a safetensors file.

    8 bytes   length of the header, little-endian
    header    {"__metadata__": {text: text}, name: {"dtype", "shape", "data_offsets": [begin, end]}}
    data      the tensors, back to back, without holes

The reference implementation makes the same checks (safetensors/src/tensor.rs, `validate`): every
byte of the data belongs to exactly one tensor, and the size of each tensor follows from its dtype
and shape.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, TypeGuard

from zerotools.core import dtypes
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadFile, Unsupported
from zerotools.io.files.metadata_memory_limit import DataSize, bytes_on_disk, may_be_read
from zerotools.io.files.read_json import parse_json
from zerotools.io.files.regular_files import source_file
from zerotools.io.files.tolerated_damage import raise_or_record

LARGEST_HEADER = 100_000_000
METADATA = "__metadata__"
REMARK = "zerotools.remark"
"""The key in `__metadata__` for a sentence on the weights, such as that they are a mixture of
several models.
"""
_LFS = b"version https://git-lfs.github.com/"
SHARDING_INFO = "DCP_SHARDING_INFO"


@dataclass(frozen=True, slots=True)
class HeaderEntry:
    """The entry of one tensor. The tensor's data are the bytes [begin, end) of the file."""

    dtype: DType
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Header:
    """A checked header. Its tensors are in the order in which the file stores them.

    Attributes:
        starts: if the file has the blocks of one rank: tensor name -> the index in the whole tensor
            at which the block begins. None if all tensors are whole.
        unread: name of a tensor with an unknown dtype -> a sentence for the user that says this.
    """

    entries: Mapping[str, HeaderEntry]
    metadata: Mapping[str, str]
    file_size: int
    starts: Mapping[str, tuple[int, ...]] | None = None
    unread: Mapping[str, str] = field(default_factory=dict)


def read_header(path: Path) -> Header:
    """Read and check the header of a file.

    If damage is tolerated, tensors may extend beyond the end of the file.

    Raises:
        BadFile: the file is not a safetensors file, is truncated, or its header is inconsistent.
        Unsupported: every tensor has a dtype that zerotools cannot move.
    """
    with source_file(path) as source, source.stream() as file:
        size = file.seek(0, 2)
        file.seek(0)
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > LARGEST_HEADER or 8 + length > size:
            file.seek(0)
            if file.read(len(_LFS)) == _LFS:
                raise BadFile(
                    f"{path} is a Git LFS pointer, not the file itself; fetch the file with git "
                    "lfs pull"
                )
            wrong = f"but its header would have {length}" if size >= 8 else "fewer than 8"
            raise BadFile(
                f"{path} has {size} bytes, {wrong}: it is truncated, or not a safetensors file; "
                "copy or download it again"
            )
        on_disk = bytes_on_disk(source.status())

        def data_size() -> int:
            return max(0, on_disk - length)

        if not may_be_read(length, data_size):
            raise BadFile(
                f"{path}: its header has {length} bytes, but the file has only {data_size()} bytes "
                "of data: the file was made to fill the memory; do not use it"
            )
        data = file.read(length)
    tree = _parse(path, data, data_size)
    metadata = _metadata(path, tree.pop(METADATA, {}))
    entries: dict[str, HeaderEntry] = {}
    spans: dict[str, tuple[int, int]] = {}
    unread: dict[str, str] = {}
    for name, value in tree.items():
        begin, end = spans[name] = _span(path, name, value, 8 + length)
        try:
            entries[name] = _entry(path, name, value, begin, end)
        except Unsupported as error:
            unread[name] = str(error)
    _check_cover(path, spans, 8 + length, size)
    if unread and not entries:
        raise Unsupported(next(iter(unread.values())))
    return Header(entries, metadata, size, _starts(path, metadata, entries), unread)


def _parse(path: Path, data: bytes, data_size: DataSize) -> dict[str, Any]:
    if not data.startswith(b"{"):
        raise BadFile(
            f"{path}: its header does not start with '{{': it is not a safetensors file; name "
            "another file"
        )
    try:
        tree = parse_json(path, data, data_size, _distinct)
    except ValueError as error:
        raise BadFile(
            f"{path}: its header is not JSON: {error!s:.200}; copy or download the file again"
        ) from None
    if not isinstance(tree, dict):
        raise BadFile(f"{path}: its header is not a JSON object; copy or download the file again")
    return tree


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    tree = dict(pairs)
    if len(tree) != len(pairs):
        raise ValueError("a key occurs twice in one object")
    return tree


def _metadata(path: Path, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise BadFile(
            f"{path}: {METADATA} is not a table of strings; copy or download the file again"
        )
    return value


def _span(path: Path, name: str, value: Any, data_begin: int) -> tuple[int, int]:
    """Return the positions in the file of a tensor's first byte and of the byte after its end."""
    if not isinstance(value, dict):
        raise BadFile(
            f"{path}: {name!r} in its header is not a JSON object; copy or download the file again"
        )
    dtype, shape, offsets = value.get("dtype"), value.get("shape"), value.get("data_offsets")
    if not isinstance(dtype, str) or not _are_counts(shape) or not _are_counts(offsets):
        raise BadFile(
            f"{path}: {name!r} lacks a dtype, a shape or data_offsets; copy or download the file "
            "again"
        )
    if len(offsets) != 2:
        raise BadFile(
            f"{path}: {name!r} has {len(offsets)} data_offsets, but must have 2; copy or download "
            "the file again"
        )
    begin, end = offsets
    return data_begin + begin, data_begin + end


def _entry(path: Path, name: str, value: Mapping[str, Any], begin: int, end: int) -> HeaderEntry:
    try:
        kind = dtypes.from_safetensors(value["dtype"])
    except Unsupported as error:
        raise Unsupported(f"{path}: {name!r}: {error}") from None
    shape = value["shape"]
    needed = prod(shape) * kind.itemsize
    if end - begin != needed:
        raise BadFile(
            f"{path}: {name!r}, {kind} of shape {tuple(shape)}, needs {needed} bytes, but its "
            f"data_offsets span {end - begin}; copy or download the file again"
        )
    return HeaderEntry(kind, tuple(shape), begin, end)


def _starts(
    path: Path, metadata: Mapping[str, str], entries: Mapping[str, HeaderEntry]
) -> dict[str, tuple[int, ...]] | None:
    """Return, for each block in one rank's file, the index at which it begins in the whole tensor,
    as torch's HuggingFaceStorageWriter records it. Return None if the file has no such record.
    """
    if SHARDING_INFO not in metadata:
        return None
    try:
        tree: Any = json.loads(metadata[SHARDING_INFO])
    except (ValueError, RecursionError) as error:
        raise BadFile(
            f"{path}: {SHARDING_INFO} is not JSON: {error!s:.200}; copy or download the file again"
        ) from None
    starts = {}
    for name, entry in entries.items():
        about = tree.get(name) if isinstance(tree, dict) else None
        start = about.get("saved_offsets") if isinstance(about, dict) else None
        if not _are_counts(start) or len(start) != len(entry.shape):
            raise BadFile(
                f"{path}: {SHARDING_INFO} has no offsets in {len(entry.shape)} dimensions for "
                f"{name!r}; copy or download the file again"
            )
        starts[name] = tuple(start)
    return starts


def _are_counts(values: Any) -> TypeGuard[list[int]]:
    return isinstance(values, list) and all(type(v) is int and 0 <= v < 2**63 for v in values)


def _check_cover(path: Path, spans: Mapping[str, tuple[int, int]], start: int, size: int) -> None:
    """Check that every byte of the data is in exactly one tensor."""
    ordered = sorted(spans.items(), key=lambda item: item[1])
    edges = [("the header", start), *((name, end) for name, (_, end) in ordered)]
    for (before, end), (name, (begin, _)) in zip(edges, ordered, strict=False):
        if begin != end:
            fault = "overlap" if begin < end else "leave a hole"
            raise BadFile(
                f"{path}: {before!r} ends at byte {end}, but {name!r} begins at byte {begin}: they "
                f"{fault}; copy or download the file again"
            )
    if edges[-1][1] != size:
        error = BadFile(
            f"{path} has {size} bytes, but its header accounts for {edges[-1][1]}: it is "
            "truncated or something was appended; copy or download it again"
        )
        if edges[-1][1] < size:
            raise error
        raise_or_record(path, error)
