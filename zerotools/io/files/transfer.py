"""Bytes of one open file to another, unchanged."""

from __future__ import annotations

import os
from collections.abc import Iterator

from zerotools.io.files.open_source import LocalSource, OpenSource

# One call may take long, and cannot be interrupted.
_MOST = 64 * 1024 * 1024
_BUFFER = 1024 * 1024


def transfer(source: OpenSource, source_offset: int, output: int, offset: int, length: int) -> int:
    """Copy `length` bytes; return the number copied, fewer if the source ends early.

    The kernel copies them if it can, which halves the work. If it refuses, as between some file
    systems, the rest is copied through memory, with the errors of that copy.

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
    """Yield the sizes of copied parts, until all is copied or the kernel copies no more."""
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
    """Yield the sizes of copied parts, until all is copied or the source ends."""
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
