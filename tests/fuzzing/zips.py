"""The zip of torch.save: every record lies inside the file, none over another, and has the bytes
that other readers of zip files find under its name."""

from __future__ import annotations

import os
from itertools import pairwise

from tests.fuzzing import scratch
from zerotools.core.errors import ZerotoolsError
from zerotools.io.files.open_source import LocalSource
from zerotools.io.torchzip.file_range import FileRange
from zerotools.io.torchzip.zip_directory import payload_of, read_directory, read_entry

LARGEST = 2**16


def check(data: bytes) -> None:
    """`data` is the file."""
    path = scratch.scratch("zip") / "a.pt"
    path.write_bytes(data)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        found = _records(FileRange.whole(LocalSource(descriptor), path), len(data))
    except ZerotoolsError as error:
        assert str(error).startswith(str(path)), str(error)
        return
    finally:
        os.close(descriptor)
    if scratch.PEERS:
        from tests.fuzzing.peers import zip_readers

        zip_readers.compare(data, found)


def _records(window: FileRange, size: int) -> dict[str, bytes]:
    found = {}
    taken = []
    for name, entry in read_directory(window).items():
        at = payload_of(window, entry)
        assert entry.header < at <= at + entry.length <= size
        taken.append((at, at + entry.length))
        if entry.length <= LARGEST:
            found[name] = read_entry(window, entry)
    ordered = sorted(span for span in taken if span[0] != span[1])
    assert all(one[1] <= other[0] for one, other in pairwise(ordered))
    return found
