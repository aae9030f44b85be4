"""A path to an object or a directory in a store. A directory consists of all objects with keys
below its own key.

The text of such a path is like the text of a local path. Methods such as `exists` and `iterdir` use
listings of the store. Operations that a store does not have (make a directory, rename, open) are
refused. The first word of the path contains a NUL, which is not shown. If a local path is made from
it by mistake, the system refuses that path, and never uses a local file of this name.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Generator, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, NoReturn

from zerotools.core.errors import BadRequest, Unsupported
from zerotools.io.files.open_source import FarSource, RemotePath
from zerotools.io.stores.remote_source import RemoteSource, StorePrefetch, status_of
from zerotools.io.stores.store_interface import FarObject, FarStore, WritableStore
from zerotools.io.stores.store_listing import StoreListing

_SIGN = ":\0"


class StorePath(RemotePath):
    """A path in a store. `str` of it is the URL."""

    @classmethod
    def of(cls, scheme: str, words: Sequence[str]) -> StorePath:
        """Return the path for a scheme and the parts of a URL after it, which the caller has
        checked."""
        return cls(scheme + _SIGN, *words)

    def __str__(self) -> str:
        return PurePosixPath.__str__(self).replace(f"{_SIGN}/", "://", 1)

    def __repr__(self) -> str:
        return f"StorePath({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(self.parts)

    def as_posix(self) -> str:
        return str(self)

    def __bytes__(self) -> NoReturn:
        self._refuse()

    def as_uri(self) -> str:
        return str(self)

    @property
    def is_root(self) -> bool:
        """True if the path is the root of a store."""
        return len(self.parts) == 1 + root_parts(self.parts[0].removesuffix(_SIGN))

    @property
    def parent(self) -> StorePath:
        """The directory that the path lies in. The root of a store has no usable parent, because
        other stores may belong to other people.
        """
        return self / ".." if self.is_root else super().parent

    def _is_above(self) -> bool:
        """Return whether the path is above the root of a store, so that no request can be made for
        it.
        """
        return ".." in self.parts or len(self.parts) < 1 + root_parts(
            (self.parts or ("",))[0].removesuffix(_SIGN)
        )

    @property
    def place(self) -> Place:
        """The store of the path, and its key in the store.

        Raises:
            BadRequest: the store cannot be opened.
        """
        scheme, *words = self.parts or ("",)
        if not scheme.endswith(_SIGN):
            self._refuse()
        return place_of(scheme.removesuffix(_SIGN), tuple(words))

    def open_source(self) -> FarSource:
        if self._is_above():
            raise FileNotFoundError(2, os.strerror(2), str(self))
        store, key, listing, prefetch = self.place
        found = listing.object(key)
        if found is None:
            raise FileNotFoundError(2, os.strerror(2), str(self))
        prefetch.opened(key)
        return RemoteSource(store, found)

    @property
    def listing_problem(self) -> str:
        _, key, listing, _ = self.place
        return listing.problem(key)

    def forget(self) -> None:
        _, key, listing, _ = self.place
        listing.forget(key)

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        if self._is_above():
            raise FileNotFoundError(2, os.strerror(2), str(self))
        _, key, listing, _ = self.place
        if listing.is_directory(key):
            return os.stat_result((stat.S_IFDIR | 0o755, 0, 0, 1, 0, 0, 0, 0, 0, 0))
        found = listing.object(key)
        if found is None:
            raise FileNotFoundError(2, os.strerror(2), str(self))
        return status_of(found)

    def lstat(self) -> os.stat_result:
        return self.stat()

    def exists(self, *, follow_symlinks: bool = True) -> bool:
        return self.is_dir() or self.is_file()

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        if self._is_above():
            return False
        _, key, listing, _ = self.place
        return listing.is_directory(key)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        if self._is_above():
            return False
        _, key, listing, _ = self.place
        return not listing.is_directory(key) and listing.object(key) is not None

    def is_symlink(self) -> bool:
        return False

    def is_mount(self) -> bool:
        return False

    def is_absolute(self) -> bool:
        return bool(self.parts) and self.parts[0].endswith(_SIGN)

    def absolute(self) -> StorePath:
        return self

    def resolve(self, strict: bool = False) -> StorePath:
        return self

    def expanduser(self) -> StorePath:
        return self

    def iterdir(self) -> Generator[StorePath, None, None]:
        if self._is_above():
            return
        if not self.is_dir():
            raise FileNotFoundError(2, os.strerror(2), str(self))
        _, key, listing, _ = self.place
        yield from [self / name for name in listing.names(key)]

    def below(self) -> Iterator[StorePath]:
        """Yield every object below the path, sorted by key."""
        _, key, listing, _ = self.place
        for each in listing.below(key):
            yield self / (each.key[len(key) + 1 :] if key else each.key)

    def glob(self, pattern: str, **_: Any) -> Iterator[StorePath]:  # type: ignore[override]
        """Yield the objects and directories in this directory with a name that matches. If the
        pattern begins with `**/`, yield all matching objects below it.
        """
        if pattern.startswith("**/") and "/" not in pattern[3:]:
            return (each for each in self.below() if fnmatchcase(each.name, pattern[3:]))
        if "/" in pattern or "**" in pattern:
            self._refuse()
        names = self.iterdir() if self.is_dir() else iter(())
        return (each for each in names if fnmatchcase(each.name, pattern))

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise Unsupported(
            f"{self} is in an object store, but a file or directory on this machine is needed; "
            "copy it to a disk and name the copy"
        )

    # What only a file system does.
    open = mkdir = unlink = rmdir = rename = replace = touch = chmod = _refuse
    read_bytes = read_text = write_bytes = write_text = readlink = _refuse
    symlink_to = hardlink_to = rglob = walk = samefile = owner = group = _refuse


def writable_store(path: Path) -> tuple[WritableStore, str]:
    """Return the store that `path` lies in, and the key of `path` in the store.

    Raises:
        Unsupported: the store is read-only.
        BadRequest: `path` is a whole bucket.
    """
    assert isinstance(path, StorePath), f"{path} is not in a store"
    store, key, *_ = path.place
    if store.url.partition(":")[0] not in BUCKETS:
        raise Unsupported(
            f"{path} cannot be written: {store.url.partition(':')[0]}:// is read-only; write to "
            f"{', '.join(f'{each}://' for each in BUCKETS)} or to a disk"
        )
    if not key:
        raise BadRequest(
            f"{path} is a whole bucket; name a prefix in it, such as {path}/checkpoint"
        )
    return store, key  # type: ignore[return-value]


def put_object(path: Path, data: bytes) -> FarObject:
    """Write a small object at `path`. An existing object is replaced."""
    store, key = writable_store(path)
    written = store.put(key, data)
    forget_path(path)
    return written


def remove_objects(paths: Iterable[Path]) -> None:
    """Remove objects, which are all in one store. A path without an object is not an error."""
    paths = list(paths)
    if paths:
        places = [writable_store(path) for path in paths]
        places[0][0].delete([key for _, key in places])
        forget_path(paths[0])


def forget_path(path: Path) -> None:
    """Drop the cached facts about a path, so that the next access sends a request to the store."""
    assert isinstance(path, StorePath)
    path.forget()


BUCKETS = ("s3", "gs", "az")
_ENDPOINTS = (
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "STORAGE_EMULATOR_HOST",
    "AZURE_STORAGE_ENDPOINT",
    "HF_ENDPOINT",
)
_ROOT_PARTS = {"hf": 2}
"""The number of path components after `://` that name the store, if it is not 1:
`hf://OWNER/MODEL`.
"""


class Place(NamedTuple):
    """The position of a path: its `store`, its `key` there, and the store's cached listings and
    prefetch."""

    store: FarStore
    key: str
    listing: StoreListing
    prefetch: StorePrefetch


def root_parts(scheme: str) -> int:
    """Return the number of path components after `scheme://` that name the store, such as 1 for
    a bucket.
    """
    return _ROOT_PARTS.get(scheme, 1)


def place_of(scheme: str, parts: tuple[str, ...]) -> Place:
    """Return the store of a path, and the key of the path in the store. `parts` are the components
    of the path after `scheme://`.

    Raises:
        BadRequest: `parts` do not name a store, or the library of the store is not installed.
    """
    count = root_parts(scheme)
    if len(parts) < count:
        raise BadRequest(f"{scheme}://{'/'.join(parts)} does not name a prefix in a store")
    listing, prefetch = _opened(scheme, parts[:count], tuple(map(os.environ.get, _ENDPOINTS)))
    return Place(listing.store, "/".join(parts[count:]), listing, prefetch)


@lru_cache(maxsize=64)
def _opened(
    scheme: str, parts: tuple[str, ...], endpoints: tuple[str | None, ...]
) -> tuple[StoreListing, StorePrefetch]:
    """Open a store, and return its cached listings and its prefetch. Each store is opened only
    once.

    `endpoints` are the values of the environment variables that set endpoints. If these values have
    changed, the store is opened again.
    """
    listing = StoreListing(_open(scheme, parts))
    return listing, StorePrefetch(listing)


def _open(scheme: str, parts: tuple[str, ...]) -> FarStore:
    if scheme in BUCKETS:
        from zerotools.io.stores.s3_gs_azure_http import open_bucket

        return open_bucket(scheme, parts[0])
    if scheme == "hf":
        from zerotools.io.stores.hub_files import HubFiles

        return HubFiles(*parts)
    from zerotools.io.stores.s3_gs_azure_http import WebFiles

    return WebFiles(f"{scheme}://{parts[0]}")
