"""Azurite does what obstore asks of an Azure, also behind the proxy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.stores import azure
from harness.stores.azure import AzureServer
from harness.stores.faults import FaultProxy
from tests.harness.stores.conftest import Client
from tests.harness.stores.judged import check_store

pytestmark = pytest.mark.skipif(azure.why_not() is not None, reason=str(azure.why_not()))
CLIENT = "AzureStore"


@pytest.fixture(scope="module")
def served() -> Iterator[AzureServer]:
    with AzureServer() as server:
        yield server


def test_it_is_a_store(served: AzureServer, client: Client) -> None:
    with FaultProxy(served.url) as proxy:
        check_store(client(azure.client_env(proxy.url)), served, page_keys=7)
        assert proxy.counts["part"] == 2
        assert proxy.counts["complete"] == 1


def test_blocks_of_which_no_blob_was_made_are_seen(served: AzureServer) -> None:
    served.ask("PUT", f"/{served.container}/begun", {"comp": "block", "blockid": "AAAA"}, b"data")
    assert served.uploads() == ["begun"]
    assert "begun" not in served.sizes()


def test_another_key_is_refused(served: AzureServer, client: Client) -> None:
    obstore = pytest.importorskip("obstore")
    store = client({**served.env, "AZURE_STORAGE_ACCOUNT_KEY": "AAAA"})
    with pytest.raises(obstore.exceptions.PermissionDeniedError):
        obstore.get(store, "x")
