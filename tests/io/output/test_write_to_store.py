from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from harness.stores.gcs import GcsServer
from harness.stores.trouble import ACCESS_DENIED
from tests.io.stores.far import far, served, troubled
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.formats.detect import refuse_being_written
from zerotools.formats.format import UnfinishedCheckpoint
from zerotools.io.output.output_marker import MARKER
from zerotools.io.output.store_write_record import WRITING, is_written
from zerotools.io.output.write_to_store import (
    FarStaging,
    ForeignObjects,
    check_far_destination,
    remove_output,
)
from zerotools.io.stores.parse_url import path_of
from zerotools.io.stores.store_path import StorePath, writable_store

FILES = ("a.pt", "b.pt")
MADE_OF = {"source files": "1", "options": "2"}


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    with served(monkeypatch) as store:
        yield store


def begun(
    made_of: dict[str, str] = MADE_OF, *, resume: bool = False, overwrite: bool = False
) -> FarStaging:
    return FarStaging(far("out"), "reshard", made_of, FILES, resume=resume, overwrite=overwrite)


def send(staging: FarStaging, name: str, data: bytes = b"x") -> None:
    store, key = writable_store(far("out"))
    staging.add(name, store.put(f"{key}/{name}", data), {"losses": []})


def marker(staging: FarStaging) -> bytes:
    tree = {"schema": "zerotools.output/1", "command": "reshard", "files": {}, "run": staging.run}
    return json.dumps(tree).encode()


def fail(error: BaseException) -> None:
    """A run that comes to its end by this error, when one object was there."""
    with begun() as staging:
        send(staging, "a.pt")
        raise error


def killed(*names: str) -> None:
    """What a run leaves that was killed when these objects were there."""
    staging = begun()
    staging.__enter__()
    for name in names:
        send(staging, name)
    staging._last_reported_at = 0.0
    staging._write_record(staging._record)


def test_an_output_has_its_objects_and_a_marker(store: GcsServer) -> None:
    with begun() as staging:
        assert WRITING in "".join(store.sizes("out/"))
        for name in FILES:
            send(staging, name)
        staging.commit(marker(staging))
    assert sorted(store.sizes("out/")) == [f"out/{MARKER}", "out/a.pt", "out/b.pt"]


def test_what_fails_leaves_nothing(store: GcsServer) -> None:
    with pytest.raises(BadFile):
        fail(BadFile("the source is damaged"))
    assert store.sizes() == {}


def test_what_a_failed_run_cannot_remove_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    with troubled(monkeypatch) as (store, proxy):
        proxy.add(ACCESS_DENIED, kind="delete", path="out/a.pt", times=1)
        with pytest.raises(BadFile, match="the source is damaged"):
            fail(BadFile("the source is damaged"))
        assert sorted(store.sizes()) == [f"out/{WRITING}", "out/a.pt"]
        with begun(resume=True) as staging:
            assert staging.took_over


def test_what_is_interrupted_stays_and_is_resumed(store: GcsServer) -> None:
    with pytest.raises(KeyboardInterrupt):
        fail(KeyboardInterrupt())
    with begun(resume=True) as staging:
        assert list(staging.done) == ["a.pt"]
        assert staging.took_over


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_checkpoint_is_never_replaced(store: GcsServer, overwrite: bool) -> None:
    store.put("out/model.safetensors", b"of somebody")
    with pytest.raises(BadRequest, match="holds 1 object"):
        check_far_destination(far("out"), overwrite=overwrite)
    assert store.get("out/model.safetensors") == b"of somebody"


def test_what_a_killed_run_left_is_told(store: GcsServer) -> None:
    killed("a.pt")
    with pytest.raises(
        BadRequest, match=r"not complete: it has 1 of 2 files.*--resume.*--overwrite"
    ):
        check_far_destination(far("out"))
    assert not is_written(far("out"))


def test_it_is_cleared_where_that_is_asked_for(store: GcsServer) -> None:
    killed("a.pt")
    with begun(overwrite=True) as staging:
        assert sorted(store.sizes("out/")) == [f"out/{WRITING}"]
        assert not staging.done


def test_objects_of_others_are_never_cleared(store: GcsServer) -> None:
    killed("a.pt")
    store.put("out/notes.txt", b"of somebody")
    with pytest.raises(BadRequest, match=r"did not write: notes\.txt"):
        check_far_destination(far("out"), overwrite=True)


def test_another_output_is_not_resumed(store: GcsServer) -> None:
    killed("a.pt")
    with (
        pytest.raises(BadRequest, match="had other options"),
        begun({**MADE_OF, "options": "3"}, resume=True),
    ):
        raise AssertionError("it was begun")
    assert "out/a.pt" in store.sizes()


def test_an_object_that_is_another_than_was_noted_is_made_again(store: GcsServer) -> None:
    killed("a.pt", "b.pt")
    store.put("out/b.pt", b"y")
    with begun(resume=True) as staging:
        assert list(staging.done) == ["a.pt"]
        assert "out/b.pt" not in store.sizes()


def test_a_kill_after_the_marker_leaves_a_whole_output(store: GcsServer) -> None:
    staging = begun()
    staging.__enter__()
    for name in FILES:
        send(staging, name)
    store.put(f"out/{MARKER}", marker(staging))
    far("out").forget()
    assert is_written(far("out"))
    with pytest.raises(BadRequest, match="holds 4 objects"):
        check_far_destination(far("out"), resume=True)


def test_two_runs_that_write_to_one_place_notice_each_other(store: GcsServer) -> None:
    first = begun().__enter__()
    with begun(overwrite=True) as second:
        for name in FILES:
            send(second, name)
        second.commit(marker(second))
    with pytest.raises(BadRequest, match="another run is writing"):
        first.commit(marker(first))
    first.__exit__(BadRequest, None, None)
    assert len(store.sizes()) == len(FILES) + 1
    assert json.loads(store.get(f"out/{MARKER}"))["run"] == second.run


@pytest.mark.parametrize("url", ["http://127.0.0.1:9/out", "hf://team/model/out"])
def test_a_store_that_is_only_read_is_refused(url: str) -> None:
    pytest.importorskip("huggingface_hub")
    with pytest.raises(Unsupported, match="is read-only"):
        check_far_destination(path_of(url))


def test_a_whole_bucket_is_refused(store: GcsServer) -> None:
    with pytest.raises(BadRequest, match="is a whole bucket"):
        check_far_destination(far())


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
