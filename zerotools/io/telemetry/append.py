"""Append a record to a file completely, or not at all.

Standard library only, and no newer syntax than that of Python 3.9: programs of users write with
this too.
"""

from __future__ import annotations

import errno
import os


def write_whole(file: int, data: bytes) -> None:
    """Append `data`; a part of it would garble what comes after it.

    Raises:
        OSError: the disk is full; the file is as it was.
    """
    start = os.fstat(file).st_size
    if os.write(file, data) < len(data):
        os.ftruncate(file, start)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
