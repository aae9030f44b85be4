"""An object in a store that is open for reading.

Small reads, of headers and directories, use blocks that are cached. The cache has `KEPT` bytes for
all objects together. A block is small at first. If reads continue after it, the next block is twice
as long, so that a sequential read takes few requests. Large reads are requested directly, in pieces
that are fetched in parallel, and are not cached. All ranges of a tile are fetched at once, adjacent
ranges in one request (`fetch`).

A read returns fewer bytes than requested only at the end of the object.

`StorePrefetch` reads ahead in a directory of similar files, such as the files of a thousand ranks.
A reader opens such files one after another with sequential requests. After it has opened two of the
files, the first and last bytes of the next files are requested in parallel. At most some KiB of
each of a few files are fetched without being needed. Errors are ignored here; the later read of the
file raises them.
"""

from __future__ import annotations

import hashlib
import io
import os
import stat
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from threading import Lock
from typing import BinaryIO, cast

from zerotools.core.errors import ZerotoolsError
from zerotools.io.files.open_source import SourceStream
from zerotools.io.stores.store_interface import FarObject, FarStore
from zerotools.io.stores.store_listing import StoreListing

KEPT = 64 * 2**20
"""All cached blocks of a process have together at most this many bytes."""
FIRST_BLOCK, LARGEST_BLOCK = 64 * 2**10, 4 * 2**20
LARGEST_PIECE = 8 * 2**20
"""The largest number of bytes in one request."""
WORTHWHILE_GAP = 256 * 2**10
"""A gap of this many bytes takes as long to transfer as one more request takes. Smaller gaps are
read, too.
"""
MOST_TOO_MANY = 2
"""The requested bytes are at most the needed bytes multiplied by this factor, because all requested
bytes are kept in memory.
"""
SIDE_BY_SIDE = 24
"""The largest number of requests that are made at the same time."""
_STATUS_BLOCK = 512


def status_of(found: FarObject) -> os.stat_result:
    """Return a status of the object like the status of a local file. Its inode number is made from
    the ETag, which changes if the bytes change.
    """
    sign = (found.etag or repr(found.modified)).encode()
    number = int.from_bytes(hashlib.blake2b(sign, digest_size=8).digest(), "little") >> 1
    plain = (stat.S_IFREG | 0o644, number, 0, 1, 0, 0, found.size)
    times = (int(found.modified),) * 3
    more = {"st_mtime_ns": 0, "st_blocks": -(-found.size // _STATUS_BLOCK)}
    return os.stat_result((*plain, *times), more)


class RemoteSource:
    """An open object in a store. Only the version that existed at the opening is read."""

    def __init__(self, store: FarStore, found: FarObject) -> None:
        self._store = store
        self._found = found
        self._key = (store.url, found.key, found.etag)
        self._next, self._length = -1, FIRST_BLOCK

    def status(self) -> os.stat_result:
        return status_of(self._found)

    def read(self, count: int, offset: int) -> bytes:
        end = min(self._found.size, offset + count)
        if end <= offset:
            return b""
        if end - offset >= LARGEST_BLOCK:
            data = bytearray(end - offset)
            self.read_into(memoryview(data), offset)
            return bytes(data)
        block, begin = self._block(offset, end)
        return bytes(block[offset - begin : end - begin])

    def read_into(self, view: memoryview, offset: int) -> int:
        end = min(self._found.size, offset + len(view))
        if end <= offset:
            return 0
        if end - offset < FIRST_BLOCK or self._find_cached(offset, end) is not None:
            block, begin = self._block(offset, end)
            view[: end - offset] = block[offset - begin : end - begin]
            return end - offset
        (data,) = self.fetch([(offset, end)])()
        at = 0
        for part in data:
            view[at : at + len(part)] = part
            at += len(part)
        return end - offset

    def fetch(
        self, ranges: Sequence[tuple[int, int]]
    ) -> Callable[[], Sequence[Sequence[memoryview]]]:
        """Request the bytes of `ranges`, each [begin, end) inside the object, and return a function
        that waits for them.

        The function returns the bytes of each range, in parts.
        """
        requests = _joined(ranges)
        starts = [begin for begin, _ in requests]
        asked = [_fetchers().submit(self._get, begin, end) for begin, end in requests]

        def wait() -> Sequence[Sequence[memoryview]]:
            try:
                data = [each.result() for each in asked]
            finally:
                for each in asked:
                    each.cancel()
            return [_cut(data, starts, begin, end) for begin, end in ranges]

        return wait

    def begin(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Request the bytes of `ranges` without waiting for them, because small reads of these
        bytes may follow. A later read of the bytes waits until they arrive.
        """
        for begin, end in _joined(ranges):
            if self._find_cached(begin, end) is None:
                coming = _fetchers().submit(self._get, begin, end)
                _KEEPING.await_block(self._key, begin, end, coming)

    def expect(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Fetch the bytes of `ranges`, each [begin, end), into the cache for small reads that
        follow.
        """
        inside = [(max(0, begin), min(end, self._found.size)) for begin, end in ranges]
        requests = [each for each in _joined(inside) if self._find_cached(*each) is None]
        asked: list[tuple[int, Future[memoryview]]] = [
            (begin, _fetchers().submit(self._get, begin, end)) for begin, end in requests
        ]
        for begin, each in asked:
            _KEEPING.keep(self._key, begin, each.result())

    def stream(self) -> BinaryIO:
        return cast(BinaryIO, io.BufferedReader(SourceStream(self), FIRST_BLOCK))

    def close(self) -> None:
        return

    def _find_cached(self, begin: int, end: int) -> tuple[memoryview, int] | None:
        return _KEEPING.find(self._key, begin, end)

    def _block(self, begin: int, end: int) -> tuple[memoryview, int]:
        """Return a block that contains the bytes [begin, end), and the offset of the block."""
        if (known := self._find_cached(begin, end)) is not None:
            return known
        size = self._found.size
        if begin == self._next:
            self._length = min(LARGEST_BLOCK, 2 * self._length)
        else:
            self._length = FIRST_BLOCK
        stop = min(size, max(end, begin + self._length))
        if size - begin < FIRST_BLOCK:  # the end of a file is read from the back
            begin = max(0, min(begin, size - FIRST_BLOCK))
        self._next = stop
        block = self._get(begin, stop)
        _KEEPING.keep(self._key, begin, block)
        return block, begin

    def _get(self, begin: int, end: int) -> memoryview:
        return self._store.get(self._found, begin, end)


def _joined(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return requests, each [begin, end), that cover the ranges in order. Ranges that are near each
    other are joined, and no request is longer than `LARGEST_PIECE`.
    """
    ordered = sorted(each for each in ranges if each[0] < each[1])
    needed, gap = sum(end - begin for begin, end in ordered), WORTHWHILE_GAP
    requests = _within(ordered, gap)
    while gap and sum(end - begin for begin, end in requests) > MOST_TOO_MANY * needed:
        gap //= 4
        requests = _within(ordered, gap)
    return [
        (at, min(at + LARGEST_PIECE, end))
        for begin, end in requests
        for at in range(begin, end, LARGEST_PIECE)
    ]


def _within(ordered: Sequence[tuple[int, int]], gap: int) -> list[tuple[int, int]]:
    """Join neighbouring ranges with at most `gap` bytes between them, and return all ranges."""
    joined: list[tuple[int, int]] = []
    for begin, end in ordered:
        if joined and begin <= joined[-1][1] + gap:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    return joined


def _cut(
    data: Sequence[memoryview], starts: Sequence[int], begin: int, end: int
) -> list[memoryview]:
    parts: list[memoryview] = []
    number = max(0, bisect_right(starts, begin) - 1)
    while begin < end:
        part = data[number][begin - starts[number] : end - starts[number]]
        assert part, "the requests for a range do not cover it"
        parts.append(part)
        begin += len(part)
        number += 1
    return parts


@cache
def _fetchers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(SIDE_BY_SIDE, thread_name_prefix="fetch")


class _Blocks:
    """A cache of blocks of objects, by object and offset. The least recently used blocks are
    removed first."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._blocks: OrderedDict[tuple[tuple[str, str, str], int], memoryview] = OrderedDict()
        self._starts: dict[tuple[str, str, str], list[int]] = {}
        self._coming: dict[tuple[str, str, str], list[tuple[int, int, Future[memoryview]]]] = {}
        self._bytes = 0

    def await_block(
        self, key: tuple[str, str, str], begin: int, end: int, coming: Future[memoryview]
    ) -> None:
        """Record a block that was requested and has not arrived."""
        with self._lock:
            self._coming.setdefault(key, []).append((begin, end, coming))

    def find(
        self, key: tuple[str, str, str], begin: int, end: int
    ) -> tuple[memoryview, int] | None:
        self._await_requested(key, begin, end)
        with self._lock:
            starts = self._starts.get(key, [])
            at = bisect_right(starts, begin)
            for start in reversed(starts[max(0, at - 2) : at]):
                block = self._blocks[key, start]
                if end <= start + len(block):
                    self._blocks.move_to_end((key, start))
                    return block, start
            return None

    def _await_requested(self, key: tuple[str, str, str], begin: int, end: int) -> None:
        """If a block that contains [begin, end) was requested, wait until it arrives and add it to
        the cache.
        """
        with self._lock:
            every = self._coming.get(key)
            found = next((each for each in every or () if each[0] <= begin < end <= each[1]), None)
            if every is None or found is None:
                return
            every.remove(found)
            if not every:
                del self._coming[key]
        with suppress(ZerotoolsError):  # then it is requested again, and raises
            self.keep(key, found[0], found[2].result())

    def keep(self, key: tuple[str, str, str], begin: int, block: memoryview) -> None:
        with self._lock:
            before = self._blocks.pop((key, begin), None)
            starts = self._starts.setdefault(key, [])
            if before is None:
                starts.insert(bisect_right(starts, begin), begin)
            else:
                self._bytes -= len(before)
            self._blocks[key, begin] = block
            self._bytes += len(block)
            while self._bytes > KEPT and len(self._blocks) > 1:
                (oldest, start), gone = self._blocks.popitem(last=False)
                self._bytes -= len(gone)
                self._starts[oldest].remove(start)
                if not self._starts[oldest]:
                    del self._starts[oldest]


_KEEPING = _Blocks()


AHEAD = 24
_BEFORE = 2
"""After this many similar files were opened, the next ones are read ahead."""


class StorePrefetch:
    """Reads ahead in the directories of one store, beyond the files that were opened there."""

    def __init__(self, listing: StoreListing) -> None:
        self._listing = listing
        self._lock = Lock()
        self._opened: dict[tuple[str, str], set[str]] = {}
        self._expected: set[tuple[str, str]] = set()

    def opened(self, key: str) -> None:
        """Record that the object `key` is opened. Request the first and last bytes of the similar
        files after it, which may be opened next.
        """
        directory, _, name = key.rpartition("/")
        suffix = name.rpartition(".")[2]
        with self._lock:
            known = self._opened.setdefault((directory, suffix), set())
            known.add(name)
            if len(known) < _BEFORE:
                return
            following = [
                each
                for each in self._listing.known_names(directory)
                if each > name and each.rpartition(".")[2] == suffix
            ][:AHEAD]
            found = [self._listing.object(f"{directory}/{each}") for each in following]
            new = [
                each
                for each in found
                if each is not None and (each.key, each.etag) not in self._expected
            ]
            if len(new) < min(AHEAD // 2, len(following)):  # enough are in transit
                return
            self._expected |= {(each.key, each.etag) for each in new}
        for each in new:
            ends = [(0, min(each.size, FIRST_BLOCK)), (max(0, each.size - FIRST_BLOCK), each.size)]
            RemoteSource(self._listing.store, each).begin(ends)
