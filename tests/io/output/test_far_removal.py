from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from harness.stores.gcs import GcsServer
from harness.stores.trouble import ACCESS_DENIED
from tests.io.stores.far import far, served, troubled
from zerotools.core.errors import BadRequest
from zerotools.formats.detect import refuse_being_written
from zerotools.formats.format import UnfinishedCheckpoint
from zerotools.io.output.far_removal import remove_output
from zerotools.io.output.far_staging import ForeignObjects
from zerotools.io.output.marker import MARKER
from zerotools.io.output.writing_name import WRITING
from zerotools.io.stores.store_path import StorePath


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    with served(monkeypatch) as store:
        yield store


def place(key: str = "out") -> StorePath:
    found = far(key)
    assert isinstance(found, StorePath)
    return found


def put_output(store: GcsServer) -> None:
    files = {name: {"size": 1, "etag": "e"} for name in ("a.pt", "dcp/b.pt")}
    tree = {"schema": "zerotools.output/1", "command": "upload", "files": files, "run": "r"}
    for name, data in (("a.pt", b"x"), ("dcp/b.pt", b"y"), (MARKER, json.dumps(tree).encode())):
        store.put(f"out/{name}", data)


def test_a_whole_output_goes(store: GcsServer) -> None:
    put_output(store)
    store.put("out-2/a.pt", b"x")
    remove_output(place())
    assert store.sizes() == {"out-2/a.pt": 1}
    remove_output(place())


@pytest.mark.parametrize("first", [1, 2, 3])
def test_while_it_goes_it_is_not_there(first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was removed when it broke off, readers refuse the rest, and the next one goes on."""
    with troubled(monkeypatch) as (store, proxy):
        put_output(store)
        proxy.add(ACCESS_DENIED, kind="delete", first=first)
        with pytest.raises(BadRequest, match="cannot be removed"):
            remove_output(place())
        place().forget()
        assert f"out/{WRITING}" in store.sizes()
        with pytest.raises(UnfinishedCheckpoint):
            refuse_being_written(place())
        proxy.reset()
        remove_output(place())
        assert store.sizes() == {}


def test_what_others_put_there_stays(store: GcsServer) -> None:
    store.put("out/notes.txt", b"mine")
    with pytest.raises(ForeignObjects, match="was not written by zerotools"):
        remove_output(place())
    assert store.sizes() == {"out/notes.txt": 4}


@pytest.mark.parametrize("record", [False, True])
def test_what_others_put_beside_an_output_stays(record: bool, store: GcsServer) -> None:
    put_output(store)
    if record:
        tree = {"run": "r", "identity": {}, "files": ["a.pt", "dcp/b.pt"], "done": {}}
        store.put(f"out/{WRITING}", json.dumps(tree).encode())
    store.put("out/scores.json", b"mine")
    before = store.sizes()
    with pytest.raises(ForeignObjects, match=r"did not write, such as scores\.json"):
        remove_output(place())
    assert store.sizes() == before
    remove_output(place(), leave_foreign=True)
    assert store.sizes() == {"out/scores.json": 4}
