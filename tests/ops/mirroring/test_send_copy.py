"""A copy in a store is the checkpoint byte for byte, or is not there."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.started import Started
from harness.stores.gcs import GcsServer, client_env
from harness.stores.trouble import ACCESS_DENIED, EndHere
from tests.io.stores.far import served, troubled
from tests.ops.mirroring.made import BUDGET, place, same, save
from zerotools.core.errors import BadFile, BadRequest
from zerotools.io.output.output_marker import MARKER
from zerotools.io.output.store_write_record import WRITING
from zerotools.ops.mirroring.fetch_copy import fetch_copy
from zerotools.ops.mirroring.list_and_remove_copies import newest_copy
from zerotools.ops.mirroring.send_copy import send_copy
from zerotools.ops.verification import verify
from zerotools.runs.manifest import MANIFEST, read_manifest

STEP = "step-00000004"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    with served(monkeypatch) as store:
        yield store


def is_whole() -> bool:
    """What `zerotools verify` says of the copy."""
    place().forget()
    return verify.carry_out_verify(verify.prepare_verify(place() / STEP)).is_whole


def test_a_copy_is_what_the_disk_has(store: GcsServer, tmp_path: Path) -> None:
    path = save(tmp_path, 4)
    told: list[int] = []
    done = send_copy(path, place() / STEP, budget=BUDGET, on_bytes=told.append)
    assert done is not None
    size = sum(entry.size for entry in read_manifest(path).values())
    assert (done.sent_bytes, done.kept_files, sum(told)) == (size, 0, size)
    names = {name.removeprefix(f"run/{STEP}/") for name in store.sizes(f"run/{STEP}/")}
    assert names == {*read_manifest(path), MANIFEST, MARKER}
    assert all(store.get(f"run/{STEP}/{n}") == (path / n).read_bytes() for n in names - {MARKER})
    assert is_whole()
    assert send_copy(path, place() / STEP, budget=BUDGET) is None


def test_the_record_of_one_that_was_killed_at_its_very_end_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = save(tmp_path, 4)
    with troubled(monkeypatch) as (store, proxy):
        proxy.add(ACCESS_DENIED, kind="delete")
        with pytest.raises(BadRequest, match="the store refuses it"):
            send_copy(path, place() / STEP, budget=BUDGET)
        assert f"run/{STEP}/{WRITING}" in store.sizes()
        assert is_whole()
        proxy.reset()
        assert send_copy(path, place() / STEP, budget=BUDGET) is None
        assert f"run/{STEP}/{WRITING}" not in store.sizes()
        assert is_whole()


def test_another_checkpoint_of_its_name_takes_its_place(store: GcsServer, tmp_path: Path) -> None:
    send_copy(save(tmp_path, 4), place() / STEP, budget=BUDGET)
    path = save(tmp_path, 4, seed=8)  # the run went back, and came here again
    assert send_copy(path, place() / STEP, budget=BUDGET) is not None
    assert store.get(f"run/{STEP}/job.json") == (path / "job.json").read_bytes()
    assert WRITING not in "".join(store.sizes())


def test_what_zerotools_has_not_written_stays(store: GcsServer, tmp_path: Path) -> None:
    store.put(f"run/{STEP}/notes.txt", b"mine")
    with pytest.raises(BadRequest, match="was not written by zerotools"):
        send_copy(save(tmp_path, 4), place() / STEP, budget=BUDGET)
    assert store.sizes() == {f"run/{STEP}/notes.txt": 4}


@pytest.mark.parametrize("damage", ["flipped", "longer", "shorter", "gone"])
def test_what_the_disk_has_lost_is_not_sent(damage: str, store: GcsServer, tmp_path: Path) -> None:
    path = save(tmp_path, 4)
    shard = next((path / "dcp").glob("*.distcp"))
    data = shard.read_bytes()
    if damage == "gone":
        shard.unlink()
    else:
        changed = {"flipped": data[:-1] + bytes([data[-1] ^ 1]), "longer": data + b"x"}
        shard.write_bytes(changed.get(damage, data[:-1]))
    with pytest.raises(BadFile, match=r"\.distcp (differs from|cannot be read)"):
        send_copy(path, place() / STEP, budget=BUDGET)
    assert store.sizes() == {}


def test_what_breaks_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path, 4)
    with troubled(monkeypatch) as (store, proxy):
        proxy.add(ACCESS_DENIED, kind="put", path="job.json")
        with pytest.raises(BadRequest, match="the store refuses it"):
            send_copy(path, place() / STEP, budget=BUDGET)
        assert f"run/{STEP}/{WRITING}" in store.sizes()
        assert newest_copy(place()).path is None
        proxy.reset()
        done = send_copy(path, place() / STEP, budget=BUDGET)
        assert done is not None
        assert 0 < done.kept_files < len(read_manifest(path))
        assert is_whole()


def test_killed_at_any_request_it_is_whole_or_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where another checkpoint has its name, which goes first."""
    first, then = save(tmp_path / "first", 4), save(tmp_path / "then", 4, seed=8)
    with troubled(monkeypatch) as (store, proxy):
        env = {**os.environ, **client_env(proxy.url)}
        seen = set()
        for number in (5, 7, 16, 26):  # in what is removed, what is written, the marker
            store.objects[store.bucket].clear()
            send_copy(first, place() / STEP, budget=BUDGET)
            proxy.reset()
            run = Started((sys.executable, "-m", "tests.ops.mirroring.sent", then), env=env)
            proxy.add(EndHere(run.kill, after=bool(number % 2)), number=number, times=1)
            assert run.wait(timeout=60) != 0
            proxy.reset()
            place().forget()
            found = newest_copy(place())
            seen.add(found.record and found.record.seed)
            if found.path is not None:
                fetch_copy(place() / STEP, tmp_path / f"fetched-{number}")
                assert any(same(tmp_path / f"fetched-{number}", each) for each in (first, then))
            send_copy(then, place() / STEP, budget=BUDGET)
            again = newest_copy(place()).record
            assert again is not None
            assert again.seed == 8
        assert {None, 7} <= seen
