"""Prefetching of similar files. In a directory of files of one kind, such as those of a thousand
ranks, files are opened one after another, and each needs sequential requests. So after two of them
were opened, the first and last bytes of the following ones are requested in parallel.

At most some KiB of each of a few files are fetched in vain. Errors are left to the reader of a
file.
"""

from __future__ import annotations

from threading import Lock

from zerotools.io.stores.listings import StoreListing
from zerotools.io.stores.remote_source import FIRST_BLOCK, RemoteSource

AHEAD = 24
_BEFORE = 2
"""Files of one kind that are opened before any is expected."""


class Neighbours:
    """The opened files of one store."""

    def __init__(self, listing: StoreListing) -> None:
        self._listing = listing
        self._lock = Lock()
        self._opened: dict[tuple[str, str], set[str]] = {}
        self._expected: set[tuple[str, str]] = set()

    def opened(self, key: str) -> None:
        """Record that `key` is opened, and fetch the neighbours that may follow."""
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
