"""A job's directory and its copy: what is sent, what stays, and what is fetched."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.stores.gcs import GcsServer
from harness.stores.trouble import Call
from tests.io.stores.far import served, troubled
from tests.ops.mirroring.made import BUDGET, mirror, place, same, save, send
from zerotools.core.errors import BadFile, BadRequest
from zerotools.ops.mirroring.checkpoint_mirror import fetch_start, start_of
from zerotools.ops.mirroring.list_and_remove_copies import newest_copy
from zerotools.ops.mirroring.send_copy import send_copy
from zerotools.runs import find_job_checkpoints
from zerotools.runs.manifest import write_manifest
from zerotools.runs.thinning_record import THINNED, is_thinned
from zerotools.runs.upload_records import FETCHED, checkpoint_in_upload


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    with served(monkeypatch) as store:
        yield store


def steps(store: GcsServer) -> list[int]:
    """Of which there is anything in the store."""
    names = {name.split("/")[1] for name in store.sizes("run/step-")}
    return sorted(find_job_checkpoints.step_of(name) or 0 for name in names)


def test_the_newest_goes_first_and_only_once(store: GcsServer, tmp_path: Path) -> None:
    output = mirror(tmp_path)
    assert output.fetch(None) is None
    for step in (2, 4, 6):
        save(tmp_path, step)
    assert send(output) == ["step-00000006", "step-00000004", "step-00000002"]
    assert send(output) == []
    save(tmp_path, 8)
    assert send(output) == ["step-00000008"]
    assert store.get("run/latest") == b"step-00000008\n"


def test_what_need_not_be_kept_goes_and_is_not_sent_again(store: GcsServer, tmp_path: Path) -> None:
    output = mirror(tmp_path, last=1, every=4)
    output.fetch(None)
    for step in (2, 3, 4, 5, 6):
        save(tmp_path, step)
    find_job_checkpoints.write_hint(tmp_path, "best", "step-00000003")
    assert send(output) == ["step-00000006", "step-00000004", "step-00000003"]
    assert (steps(store), store.get("run/best")) == ([3, 4, 6], b"step-00000003\n")
    save(tmp_path, 7)
    assert send(output) == ["step-00000007"]
    assert steps(store) == [3, 4, 7]
    assert send(output) == []


def test_one_that_is_sent_is_noted_and_one_that_goes_is_no_mistake(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with troubled(monkeypatch) as (store, proxy):
        output = mirror(tmp_path)
        output.fetch(None)
        for step in (2, 4):
            save(tmp_path, step)
        noted: list[Path | None] = []
        older = tmp_path / "step-00000002"
        proxy.add(Call(lambda: noted.append(checkpoint_in_upload(tmp_path))), kind="put", times=1)
        proxy.add(
            Call(lambda: shutil.rmtree(older, ignore_errors=True)),
            path="step-00000002/.zerotools-writing.json",
            kind="put",
        )
        assert send(output) == ["step-00000004"]
        assert (noted, checkpoint_in_upload(tmp_path)) == ([tmp_path / "step-00000004"], None)
        assert steps(store) == [4]


def test_a_damaged_one_is_told_of_and_the_others_go(store: GcsServer, tmp_path: Path) -> None:
    output = mirror(tmp_path)
    output.fetch(None)
    for step in (2, 4):
        save(tmp_path, step)
    next((tmp_path / "step-00000004" / "dcp").glob("*.distcp")).write_bytes(b"cut off")
    said: list[str] = []
    done: list[str] = []
    whole = output.send_all(
        BUDGET, lambda path, *_: done.append(path.name), lambda path, why: said.append(why)
    )
    assert (whole, done, len(said)) == (False, ["step-00000002"], 1)
    assert "differs from its entry in MANIFEST.json" in said[0]


def test_what_others_put_there_is_told_of_and_the_others_go(
    store: GcsServer, tmp_path: Path
) -> None:
    output = mirror(tmp_path)
    output.fetch(None)
    for step in (2, 4):
        save(tmp_path, step)
    store.put("run/step-00000004/notes.txt", b"mine")
    said: list[str] = []
    done: list[str] = []
    whole = output.send_all(
        BUDGET, lambda path, *_: done.append(path.name), lambda path, why: said.append(why)
    )
    assert (whole, done, len(said)) == (False, ["step-00000002"], 1)
    assert "was not written by zerotools" in said[0]


def test_where_a_run_went_back_its_own_stay(store: GcsServer, tmp_path: Path) -> None:
    output = mirror(tmp_path, last=1)
    output.fetch(None)
    save(tmp_path, 8)
    send(output)
    shutil.rmtree(tmp_path / "step-00000008")
    save(tmp_path, 4, seed=9)
    assert send(output) == ["step-00000004"]
    assert send(output) == []
    assert steps(store) == [4, 8]


def test_one_that_is_thinned_meanwhile_does_not_replace_its_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with troubled(monkeypatch) as (store, proxy):
        output = mirror(tmp_path)
        output.fetch(None)
        path = save(tmp_path, 4)
        send(output)
        before = store.sizes("run/step-")

        def thin() -> None:
            (path / THINNED).write_text("{}")
            (path / "job.json").write_bytes((path / "job.json").read_bytes() + b" ")
            write_manifest(path)

        proxy.add(Call(thin), path="zerotools-run.json", times=1)
        assert send(output) == []
        assert is_thinned(path)
        assert store.sizes("run/step-") == before


def test_one_that_is_sent_while_the_place_is_taken_over_does_not_appear(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with troubled(monkeypatch) as (_, proxy):
        output = mirror(tmp_path / "mine")
        output.fetch(None)
        save(tmp_path / "mine", 2)
        send(output)
        save(tmp_path / "mine", 4)
        other = mirror(tmp_path / "other", job="job 2")
        taken: list[Path | None] = []
        proxy.add(
            Call(lambda: taken.append(other.fetch(str(place())))),
            path="step-00000004/MANIFEST.json",
            kind="put",
            times=1,
        )
        with pytest.raises(BadRequest, match="/other: this run stops uploading"):
            send(output)
        assert taken == [tmp_path / "other" / "step-00000002"]
        assert newest_copy(place()).path == place() / "step-00000002"


def test_a_new_disk_gets_what_the_run_had(store: GcsServer, tmp_path: Path) -> None:
    old, new = mirror(tmp_path / "old"), mirror(tmp_path / "new")
    old.fetch(None)
    for step in (2, 4):
        save(tmp_path / "old", step)
    send(old)
    assert not new.can_go_on()
    assert new.fetch(None) == tmp_path / "new" / "step-00000004"
    assert same(tmp_path / "old" / "step-00000004", tmp_path / "new" / "step-00000004")
    assert new.can_go_on()
    assert new.fetch(None) is None
    save(tmp_path / "old", 6)
    with pytest.raises(BadRequest, match="this run stops uploading to it"):
        send(old)


@pytest.mark.parametrize("damage", ["gone", "flipped"])
def test_a_damaged_one_on_the_disk_is_fetched_again(
    damage: str, store: GcsServer, tmp_path: Path
) -> None:
    output = mirror(tmp_path)
    output.fetch(None)
    for step in (2, 4):
        save(tmp_path, step)
    send(output)
    shard = next((tmp_path / "step-00000004" / "dcp").glob("*.distcp"))
    if damage == "gone":
        shard.unlink()
    else:
        shard.write_bytes(shard.read_bytes()[:-1] + b"?")
    assert output.fetch(None) == tmp_path / "step-00000004"
    assert find_job_checkpoints.newest_valid(tmp_path).path == tmp_path / "step-00000004"


def test_a_job_does_not_begin_with_another_checkpoint_than_the_one_it_names(
    store: GcsServer, tmp_path: Path
) -> None:
    old, new = mirror(tmp_path / "old"), mirror(tmp_path / "new", job="job 2")
    old.fetch(None)
    for step in (2, 4):
        save(tmp_path / "old", step)
    send(old)
    store.put("run/best", b"step-00000002\n")
    for given in (f"{place()}/best", f"{place()}/step-00000002"):
        with pytest.raises(BadRequest, match="is at step 2, but the job would resume from step 4"):
            new.fetch(given)
    here = mirror(tmp_path / "old", job="job 3")
    with pytest.raises(BadRequest, match="is at step 2, but the job would resume from step 4"):
        here.fetch(f"{place()}/step-00000002")
    assert (here.can_go_on(), old.can_go_on()) == (False, True)
    assert new.fetch(f"{place()}/latest") == tmp_path / "new" / "step-00000004"
    save(tmp_path / "new", 6)
    send(new)
    shutil.rmtree(tmp_path / "new")
    given = f"{place()}/step-00000004"
    assert new.fetch(given) == tmp_path / "new" / "step-00000006"


def test_a_start_in_a_store_is_there_until_the_run_has_its_own(
    store: GcsServer, tmp_path: Path
) -> None:
    path = save(tmp_path / "old", 4)
    send_copy(path, place() / path.name, budget=BUDGET)
    here = tmp_path / "here"
    for given in (place(), place() / path.name):
        shutil.rmtree(here, ignore_errors=True)
        assert fetch_start(here, given) == here / FETCHED
        assert same(path, here / FETCHED)
    assert fetch_start(here, place()) == here / FETCHED
    save(here, 6)
    assert fetch_start(here, place()) is None


def test_a_start_that_was_fetched_is_not_taken_for_another(
    store: GcsServer, tmp_path: Path
) -> None:
    paths = [save(tmp_path / name, step) for name, step in (("a", 4), ("b", 2))]
    for path in paths:
        send_copy(path, place(path.parent.name) / path.name, budget=BUDGET)
    here = tmp_path / "here"
    for path in paths:
        assert fetch_start(here, place(path.parent.name)) == here / FETCHED
        assert same(path, here / FETCHED)


def test_a_run_does_not_begin_anew_where_its_start_is_not_there(
    store: GcsServer, tmp_path: Path
) -> None:
    with pytest.raises(BadRequest, match="gs://checkpoints/run is not a directory"):
        mirror(tmp_path).fetch(str(place()))
    assert store.sizes() == {}


def test_a_start_that_is_none_is_refused(store: GcsServer, tmp_path: Path) -> None:
    store.put("other/model.safetensors", b"x")
    with pytest.raises(BadRequest, match="is not a checkpoint: it has no"):
        start_of(place("other"))
    with pytest.raises(BadRequest, match="is not a directory"):
        start_of(place("nothing"))
    store.put("run/step-00000004/.zerotools-writing.json", b"{}")
    with pytest.raises(BadFile, match="no checkpoint in gs://checkpoints/run is complete"):
        start_of(place())
