"""Python's zipfile, and the reader in C++ that torch.load uses."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

import torch

ONLY_OURS = (
    "Bad CRC-32",  # torch can be told to write none: all are 0 then
    "zip file version",  # which nothing depends on
    "flags",
)
"""Parts of what the peer says where only ours accepts a file: why that is right."""


def compare(data: bytes, found: Mapping[str, bytes]) -> None:
    """`found` has the records that ours read, by name without the first directory."""
    try:
        theirs = _by_zipfile(data)
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError) as error:
        theirs = None
        assert any(part in str(error) for part in ONLY_OURS), f"only ours accepts it: {error}"
    if theirs is not None:
        for name, record in found.items():
            assert theirs.get(name) == record, name
    for name, record in found.items():
        assert _by_torch(data, name) in (record, None), name


def _by_zipfile(data: bytes) -> dict[str, bytes]:
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        return {info.filename.partition("/")[2]: archive.read(info) for info in archive.filelist}


def _by_torch(data: bytes, name: str) -> bytes | None:
    try:
        reader = torch._C.PyTorchFileReader(io.BytesIO(data))
        return bytes(reader.get_record(name)) if reader.has_record(name) else None
    except (RuntimeError, UnicodeDecodeError):
        return None  # it also refuses what ours reads: other names of the first directory, ...
