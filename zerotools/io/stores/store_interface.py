"""The interface of a store. Keys are paths below its root, without a slash at either end.

Every error is a `ZerotoolsError` with a sentence (`failures`), after the retries of the library.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from zerotools.core.errors import BadRequest


@dataclass(frozen=True, slots=True)
class FarObject:
    """An object in a listing or a response: `size` in bytes, `modified` in seconds since 1970.
    `etag` is without quotes, and like `version` empty if the store has none."""

    key: str
    size: int
    etag: str
    modified: float = 0.0
    version: str = ""


@dataclass(frozen=True, slots=True)
class FarDirectory:
    """Objects and directories in a directory, by name.

    `problem` is a sentence if the directory could not be listed. Then `objects` are those that an
    index in the directory names.
    """

    objects: dict[str, FarObject]
    directories: frozenset[str]
    problem: str = ""


class OddKey(BadRequest):
    """A directory that cannot be listed, because the key of an object in it is not a path."""


class FarStore(Protocol):
    """A store with readable objects."""

    url: str
    """The prefix of all its keys, without a slash at the end."""
    lists_below: bool
    """Whether `below` costs no more than `directory`, but for pages."""

    def directory(self, key: str) -> FarDirectory:
        """Return the contents of the directory `key`; empty if it does not exist."""

    def below(self, key: str) -> Iterator[FarObject]:
        """Return all objects below the directory `key`."""

    def head(self, key: str) -> FarObject | None:
        """Return the object `key`, or None if it does not exist."""

    def get(self, found: FarObject, begin: int, end: int) -> memoryview:
        """Return bytes [begin, end) of an object, which are there.

        Raises:
            BadFile: it is gone, or not the object that was found.
        """


class WritableStore(FarStore, Protocol):
    """A store to which objects are written. An object is there whole, or not at all."""

    def put(
        self, key: str, data: bytes, *, new: bool = False, replaces: FarObject | None = None
    ) -> FarObject:
        """Write a small object. With `new` there must be none of its name, and with `replaces` it
        must be that one.

        Raises:
            FileExistsError: it is not so.
        """

    def upload(self, key: str, pieces: Iterable[bytes], part_bytes: int, parts: int) -> FarObject:
        """Write an object of any size in parts of `part_bytes`, with up to `parts` in transit at a
        time. If `pieces` raises, that error is raised, and the store has no new object."""

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; missing ones are not an error."""


def directory_of(key: str, below: Iterable[FarObject]) -> FarDirectory:
    """Return the direct contents of `key`, from all objects `below` it."""
    objects: dict[str, FarObject] = {}
    directories: set[str] = set()
    for each in below:
        name, _, rest = each.key[len(key) + 1 if key else 0 :].partition("/")
        if rest:
            directories.add(name)
        else:
            objects[name] = each
    return FarDirectory(objects, frozenset(directories))
