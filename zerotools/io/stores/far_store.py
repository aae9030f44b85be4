"""What a store is asked. Keys are paths below its root, without a slash at either end.

Whatever goes wrong is a `ZerotoolsError` with a sentence (`failures`), after the retries of the
library that asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from zerotools.core.errors import BadRequest


@dataclass(frozen=True, slots=True)
class FarObject:
    """An object as a listing or an answer has it: `size` in bytes, `modified` in seconds since
    1970. `etag` is without quotes, and like `version` empty where the store gives none."""

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
    """A directory cannot be listed: the key of an object in it is no path."""


class FarStore(Protocol):
    """A store whose objects are read."""

    url: str
    """What all its keys are below, without a slash at the end."""
    lists_below: bool
    """Whether `below` costs no more than `directory`, but for pages."""

    def directory(self, key: str) -> FarDirectory:
        """What lies in the directory `key`; nothing in one that is not there."""

    def below(self, key: str) -> Iterator[FarObject]:
        """All objects below the directory `key`."""

    def head(self, key: str) -> FarObject | None:
        """The object `key`; None: there is none."""

    def get(self, found: FarObject, begin: int, end: int) -> memoryview:
        """Bytes [begin, end) of an object, which are there.

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
        """Write an object of any size in parts of `part_bytes`, of which as many as `parts` are on
        their way at a time. Where `pieces` raises, that is raised, and nothing is
        left."""

    def delete(self, keys: Sequence[str]) -> None:
        """Remove objects; those that are not there are no mistake."""


def directory_of(key: str, below: Iterable[FarObject]) -> FarDirectory:
    """What lies directly in `key`, of all objects `below` it."""
    objects: dict[str, FarObject] = {}
    directories: set[str] = set()
    for each in below:
        name, _, rest = each.key[len(key) + 1 if key else 0 :].partition("/")
        if rest:
            directories.add(name)
        else:
            objects[name] = each
    return FarDirectory(objects, frozenset(directories))
