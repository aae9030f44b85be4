"""Writing to a store, by path."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from zerotools.core.errors import BadRequest, Unsupported
from zerotools.io.stores.connections import BUCKETS
from zerotools.io.stores.far_store import FarObject, WritableStore
from zerotools.io.stores.store_path import StorePath


def writable(path: Path) -> tuple[WritableStore, str]:
    """Return the store that `path` lies in, and its key there.

    Raises:
        Unsupported: it is only read.
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
    """Write a small object, and replace an existing one."""
    store, key = writable(path)
    written = store.put(key, data)
    forget(path)
    return written


def remove_objects(paths: Iterable[Path]) -> None:
    """Remove objects of one store; missing ones are not an error."""
    paths = list(paths)
    if paths:
        places = [writable(path) for path in paths]
        places[0][0].delete([key for _, key in places])
        forget(paths[0])


def forget(path: Path) -> None:
    """Forget cached facts of a path, so that they are requested again."""
    assert isinstance(path, StorePath)
    path.forget()
