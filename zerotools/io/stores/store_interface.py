"""The interface of a store. Keys are paths below the root of the store, without a slash at either
end.

The library repeats failed requests. If a request fails finally, the method raises a
`ZerotoolsError` with a sentence for the user (`store_errors.store_failure`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from zerotools.core.errors import BadRequest


@dataclass(frozen=True, slots=True)
class FarObject:
    """An object in a listing or a response. `size` is in bytes, and `modified` in seconds since
    1970.

    `etag` has no quotes. `etag` and `version` are empty if the store has none.
    """

    key: str
    size: int
    etag: str
    modified: float = 0.0
    version: str = ""


@dataclass(frozen=True, slots=True)
class FarDirectory:
    """The objects and the directories in a directory of a store, keyed by name.

    If the directory could not be listed, `problem` is a sentence on the reason, and `objects` are
    the objects that an index in the directory names.
    """

    objects: dict[str, FarObject]
    directories: frozenset[str]
    problem: str = ""


class OddKey(BadRequest):
    """The error for a directory that cannot be listed, because it has an object with a key that is
    not a path."""


class FarStore(Protocol):
    """A store with objects that can be read."""

    url: str
    """The URL that all keys are added to, without a slash at the end."""
    lists_below: bool
    """True if a page of `below` costs as much as a page of `directory`."""

    def directory(self, key: str) -> FarDirectory:
        """Return the contents of the directory `key`; empty if it does not exist."""

    def below(self, key: str) -> Iterator[FarObject]:
        """Return all objects below the directory `key`."""

    def head(self, key: str) -> FarObject | None:
        """Return the object `key`, or None if it does not exist."""

    def get(self, found: FarObject, begin: int, end: int) -> memoryview:
        """Return the bytes [begin, end) of the object `found`. They must be inside the object.

        Raises:
            BadFile: the object does not exist any more, or has changed since it was found.
        """


class WritableStore(FarStore, Protocol):
    """A store to which objects can be written. An object exists with all its bytes, or not at
    all.
    """

    def put(
        self, key: str, data: bytes, *, new: bool = False, replaces: FarObject | None = None
    ) -> FarObject:
        """Write a small object.

        With `new`, the store must not have an object with this key. With `replaces`, the store's
        object with this key must still be the object `replaces`.

        Raises:
            FileExistsError: the condition of `new` or `replaces` is not met.
        """

    def upload(self, key: str, pieces: Iterable[bytes], part_bytes: int, parts: int) -> FarObject:
        """Write an object of any size in parts of `part_bytes` bytes. At most `parts` parts are
        sent at the same time.

        If the iterator `pieces` raises an error, that error is raised, and the store has no new
        object.
        """

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects. A key without an object is not an error."""


def directory_of(key: str, below: Iterable[FarObject]) -> FarDirectory:
    """Return the direct contents of the directory `key`, from all objects `below` it."""
    objects: dict[str, FarObject] = {}
    directories: set[str] = set()
    for each in below:
        name, _, rest = each.key[len(key) + 1 if key else 0 :].partition("/")
        if rest:
            directories.add(name)
        else:
            objects[name] = each
    return FarDirectory(objects, frozenset(directories))
