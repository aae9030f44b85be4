"""torch.save archives and plain zips for tests, made without torch."""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from zlib import crc32

from zerotools.io.files.open_source import LocalSource
from zerotools.io.torchzip.file_range import FileRange
from zerotools.io.torchzip.lay_out_archive import lay_out
from zerotools.io.torchzip.pickle_writer import dumps


def archive_bytes(tree: Any, storages: Sequence[bytes] = ()) -> bytes:
    """A whole archive of `tree` and its storages, with their CRC-32s."""
    layout = lay_out(dumps(tree), [len(data) for data in storages])
    out = bytearray(layout.length)
    for at, data in layout.literals:
        out[at : at + len(data)] = data
    for payload, data in zip(layout.payloads, (d for d in storages if d), strict=True):
        out[payload.offset : payload.offset + len(data)] = data
        for at in payload.crc_at:
            out[at : at + 4] = crc32(data).to_bytes(4, "little")
    return bytes(out)


def zip_bytes(records: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """A zip as Python's zipfile writes it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as archive:
        for name, data in records.items():
            archive.writestr(name, data)
    return buffer.getvalue()


@contextmanager
def opened(path: Path, offset: int = 0, length: int | None = None) -> Iterator[FileRange]:
    """A window of a file."""
    source = LocalSource(os.open(path, os.O_RDONLY))
    try:
        whole = FileRange.whole(source, path)
        yield whole if length is None else FileRange(source, path, offset, length)
    finally:
        source.close()
