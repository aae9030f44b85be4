"""Our GCS does what obstore asks of one, also behind the proxy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.stores import gcs
from harness.stores.faults import FaultProxy
from harness.stores.gcs import GcsServer
from tests.harness.stores.conftest import Client
from tests.harness.stores.judged import PART, check_store

CLIENT = "GCSStore"


@pytest.fixture
def served() -> Iterator[GcsServer]:
    with GcsServer(page_keys=7) as server:
        yield server


def test_it_is_a_store(served: GcsServer, client: Client) -> None:
    with FaultProxy(served.url) as proxy:
        check_store(client(gcs.client_env(proxy.url)), served, page_keys=7)
        assert proxy.counts["part"] == 2


def test_parts_that_are_too_small_are_refused(served: GcsServer, client: Client) -> None:
    obstore = pytest.importorskip("obstore")
    with pytest.raises(obstore.exceptions.GenericError, match="EntityTooSmall"):
        obstore.put(
            client(served.env), "small", b"x" * PART, use_multipart=True, chunk_size=1 << 20
        )
    assert served.uploads() == []
    assert served.sizes("small") == {}
