"""Files of an HTTP server, by obstore. A server lists nothing: the files of a directory are those
that `indexed_files` finds."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

from zerotools.io.stores.bucket import ObstoreBucket, open_web
from zerotools.io.stores.far_store import FarDirectory, FarObject, directory_of
from zerotools.io.stores.indexed_files import indexed_files


class WebFiles:
    """The files of one host."""

    lists_below = True

    def __init__(self, url: str) -> None:
        self.url = url
        self._known: dict[str, list[FarObject]] = {}

    @cached_property
    def _server(self) -> ObstoreBucket:
        return open_web(self.url)

    def directory(self, key: str) -> FarDirectory:
        return directory_of(key, self.below(key))

    def below(self, key: str) -> Iterator[FarObject]:
        for base, objects in self._known.items():
            if key == base or not base or key.startswith(f"{base}/"):
                start = f"{key}/" if key else ""
                return (each for each in objects if each.key.startswith(start))
        found = indexed_files(self._server, key)
        if found:
            self._known[key] = found
        return iter(found)

    def head(self, key: str) -> FarObject | None:
        return self._server.head(key)

    def get(self, found: FarObject, begin: int, end: int) -> memoryview:
        return self._server.get(found, begin, end)
