"""A limit on the memory for metadata, such as a header, before it is read.

A pickle, a header or a list in JSON becomes Python objects of up to 60 bytes for each of its bytes.
In a real checkpoint the metadata is small compared to the data that it describes. A file that was
made to fill the memory has no data. So any metadata may take `SMALL` bytes, and in addition a
quarter of the bytes of the data next to it. Holes in a file do not count as data, because they cost
nothing to make. Metadata of many small tensors may take more: up to `USUAL` bytes for each of its
own bytes, and at most `MOST_WITHOUT_DATA`.

    .metadata of 300,000 chunks, of 1.8 KB each, and 12 GB of data:   needs 540 MB, may take 3 GB
    a header of 100,000 tensors of 16 bytes each:                     needs 110 MB, may take 400 MB
    a pickle of 20 MB that makes a dict of each byte, and no data:    needs 1.4 GB, may take 800 MB

Standard library only: the training process imports this module in the job's Python environment,
which may lack the other dependencies of zerotools.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from zerotools.io.files.source_stamps import has_lasting_inodes

SMALL = 64 * 2**20
SHARE = 4
READ_SHARE = 4
"""The assumed memory in bytes for each byte of metadata: its objects take more than its text."""
USUAL = 40
"""The most bytes of objects for each byte of metadata that a program for training writes. The
`.metadata` of torch DCP comes near it, with 32.
"""
MOST_WITHOUT_DATA = 2**30
_BLOCK = 512

DataSize = Callable[[], int]
"""A function that returns how many bytes of data lie next to metadata. It is called only if the
metadata needs more than `SMALL` bytes.
"""


def no_data() -> int:
    """Return 0. This is the `data_size` of metadata that has no data next to it."""
    return 0


def metadata_limit(data_size: int, length: int = 0) -> int:
    """Return the largest number of bytes of memory that metadata of `length` bytes for `data_size`
    bytes of data may use.
    """
    return max(SMALL + data_size // SHARE, min(USUAL * length, MOST_WITHOUT_DATA))


def may_be_read(length: int, data_size: DataSize) -> bool:
    """Return whether metadata of `length` bytes is small enough to be read. `data_size` returns the
    number of bytes of data next to it.
    """
    needed = READ_SHARE * length
    return needed <= SMALL or needed <= metadata_limit(data_size())


def bytes_on_disk(status: os.stat_result) -> int:
    """Return the number of bytes that a file takes on the disk. It is less than the size of the
    file if the file has holes.
    """
    if not has_lasting_inodes(status.st_dev):  # such file systems do not count blocks
        return status.st_size
    return min(status.st_size, status.st_blocks * _BLOCK)


def data_in(directory: Path) -> int:
    """Return the bytes on disk of all regular files in `directory`; 0 if it cannot be listed."""
    try:
        return _data_in(directory, directory.stat().st_mtime_ns)
    except OSError:
        return 0


def data_of(paths: Iterable[Path]) -> int:
    """Return the bytes on disk of the files in `paths`. Paths that do not exist, or are not regular
    files, do not count.
    """
    total = 0
    for path in paths:
        with suppress(OSError):
            status = path.stat()
            total += bytes_on_disk(status) if stat.S_ISREG(status.st_mode) else 0
    return total


@lru_cache(maxsize=16)
def _data_in(directory: Path, _changed: int) -> int:
    return data_of(directory.iterdir())
