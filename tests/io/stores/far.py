"""Stores for tests, in threads of the test's own process, and what is put into them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.stores.faults import FaultProxy
from harness.stores.gcs import GcsServer, client_env
from zerotools.io.files.open_source import RemotePath
from zerotools.io.stores.parse_url import path_of


@contextmanager
def served(monkeypatch: pytest.MonkeyPatch, page_keys: int = 5) -> Iterator[GcsServer]:
    """A store that clients of this process ask."""
    pytest.importorskip("obstore")
    with GcsServer(page_keys=page_keys) as store:
        for name, value in store.env.items():
            monkeypatch.setenv(name, value)
        yield store


@contextmanager
def troubled(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[GcsServer, FaultProxy]]:
    """The same behind a proxy, which makes trouble."""
    with served(monkeypatch) as store, FaultProxy(store.url) as proxy:
        for name, value in client_env(proxy.url).items():
            monkeypatch.setenv(name, value)
        yield store, proxy


def far(key: str = "") -> RemotePath:
    """A place in the store."""
    found = path_of(f"gs://checkpoints/{key}")
    assert isinstance(found, RemotePath)
    return found


def put_directory(store: GcsServer, source: Path, key: str) -> RemotePath:
    """All files of a directory, below `key`."""
    for each in source.rglob("*"):
        if each.is_file():
            store.put(f"{key}/{each.relative_to(source).as_posix()}", each.read_bytes())
    return far(key)
