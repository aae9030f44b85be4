"""What tests of stores share: one S3 for all of a process, and clients that have its address."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from harness.stores import s3
from harness.stores.s3 import S3Server


@pytest.fixture(scope="session")
def moto() -> Iterator[S3Server]:
    if (why := s3.why_not()) is not None:
        pytest.skip(why)
    with S3Server(page_keys=7) as server:
        yield server


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """A client of the S3 at an address, which has the environment alone and tries nothing twice."""
    store = pytest.importorskip("obstore.store")

    def made(url: str) -> Any:
        for name, value in s3.client_env(url).items():
            monkeypatch.setenv(name, value)
        return store.S3Store(s3.BUCKET, retry_config={"max_retries": 0})

    return made
