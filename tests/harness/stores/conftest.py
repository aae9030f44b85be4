"""What tests of stores share: one S3 for all of a process, and clients that have its address."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from harness.stores import s3
from harness.stores.s3 import S3Server

Client = Callable[[Mapping[str, str]], Any]


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    if (why := s3.why_not()) is not None:
        pytest.skip(why)
    with S3Server(page_keys=7) as server:
        yield server


@pytest.fixture
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Client:
    """A client of the kind that the file's `CLIENT` says, with the bucket or container of the
    harness. It has its environment alone, and tries nothing twice."""
    store = pytest.importorskip("obstore.store")
    kind = getattr(store, getattr(request.module, "CLIENT", "S3Store"))

    def made(env: Mapping[str, str]) -> Any:
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        return kind(s3.BUCKET, retry_config={"max_retries": 0})

    return made
