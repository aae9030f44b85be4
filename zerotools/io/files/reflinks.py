"""Shares blocks of a file with a new file, on file systems where two files may have the same blocks
(reflinks: XFS, btrfs). A shared block takes space once, until one of the files changes it.

Only whole blocks can be shared, and only if the bytes are at the same position in a block of both
files.
"""

from __future__ import annotations

import errno
import fcntl
import struct

BLOCK_BYTES = 4096
# One call takes as long as writing some blocks.
LEAST_BYTES = 16 * BLOCK_BYTES
_FICLONERANGE = 0x4020940D
_TRANSIENT = frozenset({errno.EAGAIN, errno.EINTR})


class SharedBlocks:
    """Shares blocks of files with new files. `is_refused` is True after the file system has
    refused. Many threads may use one object."""

    def __init__(self) -> None:
        self.is_refused = False

    def share(self, source: int, source_offset: int, output: int, offset: int, length: int) -> bool:
        """Share `length` bytes of the file `source`, from `source_offset` on, with the file
        `output` at its byte `offset`. These three numbers are multiples of the block size.

        Return False if the bytes are not shared, for example because the file system cannot share
        blocks. In this case nothing is copied.
        """
        try:
            wanted = struct.pack("=qQQQ", source, source_offset, length, offset)
            fcntl.ioctl(output, _FICLONERANGE, wanted)
        except OSError as error:
            # Another file system, or one without shared blocks or with larger ones: it will refuse
            # every range.
            self.is_refused = error.errno not in _TRANSIENT
            return False
        return True


def whole_blocks(source_offset: int, offset: int, length: int) -> tuple[int, int]:
    """Return the range (begin, end) of the whole blocks in `length` bytes that are at
    `source_offset` in one file and at `offset` in another. `begin` and `end` are counted from the
    first of these bytes. Return (0, 0) if blocks cannot be shared, or are too few.
    """
    begin, end = -offset % BLOCK_BYTES, length - (offset + length) % BLOCK_BYTES
    is_aligned = (source_offset - offset) % BLOCK_BYTES == 0
    return (begin, end) if is_aligned and end - begin >= LEAST_BYTES else (0, 0)
