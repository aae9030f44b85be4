"""Copies a range of bytes from an open file to another, in the kernel if possible."""

from __future__ import annotations

import os
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
