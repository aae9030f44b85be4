"""Copies a range of bytes from an open file to another, in the kernel if possible; or shares its
blocks with the other file, without a copy.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Iterator

from zerotools.io.files.open_source import LocalSource, OpenSource

# A single call with more bytes could take long, and cannot be interrupted.
_MOST = 64 * 1024 * 1024
_BUFFER = 1024 * 1024


def copy_bytes(
    source: OpenSource, source_offset: int, output: int, offset: int, length: int
) -> int:
    """Copy `length` bytes from `source` to the descriptor `output`. Return the number of copied
    bytes, which is lower if the source ends early.

    The kernel copies the bytes if it can, which halves the work. If it refuses, as between some
    file systems, the rest is copied through the memory of this process.

    Raises:
        OSError: reading or writing failed.
    """
    done = 0
    if isinstance(source, LocalSource):
        for count in _in_kernel(source.descriptor, source_offset, output, offset, length):
            done += count
    for count in _through_memory(
        source, source_offset + done, output, offset + done, length - done
    ):
        done += count
    return done


def _in_kernel(
    source: int, source_offset: int, output: int, offset: int, length: int
) -> Iterator[int]:
    """Let the kernel copy, and yield the size of each copied part. End when all is copied, or when
    the kernel copies no more.
    """
    done = 0
    while done < length:
        try:
            count = os.copy_file_range(
                source, output, min(_MOST, length - done), source_offset + done, offset + done
            )
        except OSError:
            return
        if not count:
            return
        yield count
        done += count


def _through_memory(
    source: OpenSource, source_offset: int, output: int, offset: int, length: int
) -> Iterator[int]:
    """Copy through memory, and yield the size of each copied part. End when all is copied, or when
    the source ends.
    """
    buffer = memoryview(bytearray(min(_BUFFER, length)))
    done = 0
    while done < length:
        found = source.read_into(buffer[: length - done], source_offset + done)
        if not found:
            return
        written = 0
        while written < found:
            written += os.pwrite(output, buffer[written:found], offset + done + written)
        yield found
        done += found


# Shares blocks of a file with a new file, on file systems where two files may have the same blocks
# (reflinks: XFS, btrfs). A shared block takes space once, until one of the files changes it.
#
# Only whole blocks can be shared, and only if the bytes are at the same position in a block of both
# files.

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
