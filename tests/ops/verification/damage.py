"""Damage done to copies of checkpoints."""

from __future__ import annotations

import io
import shutil
import struct
import zipfile
from pathlib import Path

from zerotools.ops.execution.tile_workers import MIN_TILE_BYTES, MemoryBudget
from zerotools.ops.verification.verification_result import Verification
from zerotools.ops.verification.verify import carry_out_verify, prepare_verify

SMALL = MemoryBudget(max_memory=2 * 3 * MIN_TILE_BYTES, workers=2)


def copy(source: Path, directory: Path) -> Path:
    """A copy of a file or a directory below `directory`, under its own name."""
    target = directory / source.name
    if source.is_dir():
        shutil.copytree(source, target)
    else:
        shutil.copy(source, target)
    return target


def flip(file: Path, offset: int, mask: int = 4) -> None:
    """Change bits of one byte."""
    with file.open("r+b") as opened:
        opened.seek(offset)
        byte = opened.read(1)[0]
        opened.seek(offset)
        opened.write(bytes([byte ^ mask]))


def largest_record(file: Path, offset: int = 0, length: int | None = None) -> int:
    """Where the bytes of the largest storage begin in the archive that is in a part of a file; of
    an archive without any, those of its pickle."""
    with file.open("rb") as opened:
        opened.seek(offset)
        data = opened.read(-1 if length is None else length)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        every = archive.infolist()
        storages = [entry for entry in every if "/data/" in entry.filename]
        header = max(storages or every, key=lambda entry: entry.file_size).header_offset
    name, extra = struct.unpack_from("<2H", data, header + 26)
    return offset + header + 30 + name + extra


def verified(path: Path, *, fast: bool = False) -> Verification:
    """What `carry_out_verify` says, with the smallest buffers."""
    return carry_out_verify(prepare_verify(path), fast=fast, budget=SMALL)


def messages(found: Verification) -> str:
    """All findings, as one text."""
    return "\n".join(finding.message for finding in found.findings)
