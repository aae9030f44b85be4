"""The contents of a store's directories, which are found with few listings, and cached until
`forget`.

A directory is listed when an entry in it is requested. If several subdirectories of one directory
were listed, such as the directories of a thousand parameters, everything below that directory is
listed at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from threading import RLock

from zerotools.io.stores.store_interface import FarDirectory, FarObject, FarStore, OddKey

_SINGLY = 3
"""After so many subdirectories of a directory were listed one by one, all files below the directory
are listed at once.
"""


class StoreListing:
    """The cached contents of a store. Any number of threads may use it."""

    def __init__(self, store: FarStore) -> None:
        self.store = store
        self._lock = RLock()
        self._directories: dict[str, FarDirectory] = {}
        self._objects: dict[str, FarObject | None] = {}
        self._singly: dict[str, int] = {}
        self._whole: set[str] = set()

    def forget(self, key: str = "") -> None:
        """Remove `key`, its contents, and the entries next to it from the cache."""
        with self._lock:
            around = key.rpartition("/")[0]
            for known in (self._directories, self._objects, self._singly):
                for each in [each for each in known if _lies_in(each, key) or each == around]:
                    del known[each]
            self._whole -= {
                each for each in self._whole if _lies_in(each, key) or _lies_in(key, each)
            }

    def is_directory(self, key: str) -> bool:
        """Return whether `key` is a directory, that is, whether objects exist below it. The root of
        a store is always a directory.
        """
        with self._lock:
            if not key:
                self._directory("")  # raises an error if the store does not exist
                return True
            above, _, name = key.rpartition("/")
            if above in self._directories:
                return name in self._directories[above].directories
            found = self._directory(key)
            return bool(found.objects or found.directories)

    def object(self, key: str) -> FarObject | None:
        """Return the object `key`, or None if it does not exist."""
        with self._lock:
            above, _, name = key.rpartition("/")
            if above in self._directories or self._is_within(key):
                known = self._directories.get(above)
                return None if known is None else known.objects.get(name)
            if key not in self._objects:
                self._objects[key] = self.store.head(key) if key else None
            return self._objects[key]

    def names(self, key: str) -> list[str]:
        """Return the names of all entries in a directory, sorted."""
        with self._lock:
            found = self._directory(key)
            return sorted({*found.objects, *found.directories})

    def problem(self, key: str) -> str:
        """Return a sentence if the directory `key` could not be listed, else an empty string."""
        with self._lock:
            return self._directory(key).problem

    def known_names(self, key: str) -> list[str]:
        """Return the sorted names of the objects in a directory; empty if it has not been listed
        yet."""
        with self._lock:
            known = self._directories.get(key)
            return [] if known is None else sorted(known.objects)

    def below(self, key: str) -> Iterator[FarObject]:
        """Return all objects below a directory, sorted by key."""
        with self._lock:
            self._list_below(key)
            start = f"{key}/" if key else ""
            every = (
                each
                for directory, found in self._directories.items()
                if directory == key or directory.startswith(start)
                for each in found.objects.values()
            )
            return iter(sorted(every, key=lambda each: each.key))

    def _is_within(self, key: str) -> bool:
        """Return whether `key` is below a directory that was listed with everything below it."""
        return bool(self._whole) and any(
            not whole or key.startswith(f"{whole}/") for whole in self._whole
        )

    def _directory(self, key: str) -> FarDirectory:
        if key not in self._directories and key not in self._whole and not self._is_within(key):
            above = key.rpartition("/")[0]
            asked = self._singly[above] = self._singly.get(above, 0) + 1
            if not (
                asked > _SINGLY and above and self.store.lists_below and self._try_list_below(above)
            ):
                self._directories[key] = self.store.directory(key)
        return self._directories.get(key) or FarDirectory({}, frozenset())

    def _try_list_below(self, key: str) -> bool:
        """List everything below `key`. Return False if an object below it has a key that is not a
        path.
        """
        try:
            self._list_below(key)
        except OddKey:
            return False
        return True

    def _list_below(self, key: str) -> None:
        if key in self._whole or self._is_within(key):
            return
        objects: dict[str, dict[str, FarObject]] = {}
        directories: dict[str, set[str]] = {}
        for each in self.store.below(key):
            above, _, name = each.key.rpartition("/")
            objects.setdefault(above, {})[name] = each
            while above != key:
                higher, _, name = above.rpartition("/")
                known = directories.setdefault(higher, set())
                if name in known:
                    break
                known.add(name)
                above = higher
        for before in [each for each in self._directories if _lies_in(each, key)]:
            del self._directories[before]
        for found in {*objects, *directories}:
            self._directories[found] = FarDirectory(
                objects.get(found, {}), frozenset(directories.get(found, ()))
            )
        self._whole.add(key)


def _lies_in(key: str, directory: str) -> bool:
    return not directory or key == directory or key.startswith(f"{directory}/")
