"""What is fetched is the copy byte for byte, or does not appear under its name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.stores.gcs import GcsServer
from harness.stores.trouble import ACCESS_DENIED, Truncate
from tests.io.stores.far import put_directory, served, troubled
from tests.ops.mirroring.made import place, same, save
from zerotools.core.errors import BadFile, BadRequest
from zerotools.ops.mirroring.fetch_copy import fetch_copy
from zerotools.runs.manifest import MANIFEST, read_manifest

STEP = "step-00000004"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    with served(monkeypatch) as store:
        yield store


def kept(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_fetch_is_the_copy(store: GcsServer, tmp_path: Path) -> None:
    path = save(tmp_path / "disk", 4)
    put_directory(store, path, f"run/{STEP}")  # as another tool copies it
    size = sum(entry.size for entry in read_manifest(path).values())
    assert fetch_copy(place() / STEP, tmp_path / "here" / STEP) == size
    assert same(path, tmp_path / "here" / STEP)
    assert kept(tmp_path / "here") == [STEP]


def test_it_takes_the_place_of_one_that_is_damaged(store: GcsServer, tmp_path: Path) -> None:
    path, here = save(tmp_path / "disk", 4), save(tmp_path / "here", 4)
    put_directory(store, path, f"run/{STEP}")
    next((here / "dcp").glob("*.distcp")).unlink()
    fetch_copy(place() / STEP, here)
    assert same(path, here)
    assert kept(tmp_path / "here") == ["latest", STEP]


def test_what_the_store_has_lost_is_named(store: GcsServer, tmp_path: Path) -> None:
    path = save(tmp_path / "disk", 4)
    shard = next((path / "dcp").glob("*.distcp"))
    data = shard.read_bytes()
    put_directory(store, path, f"run/{STEP}")
    key = f"run/{STEP}/dcp/{shard.name}"
    for changed, why in (
        (data[:-1] + bytes([data[-1] ^ 1]), "has SHA-256"),
        (data[:-1], f"has {len(data) - 1} bytes"),
    ):
        store.put(key, changed)
        place().forget()
        with pytest.raises(BadFile, match=why):
            fetch_copy(place() / STEP, tmp_path / "here" / STEP)
        assert not (tmp_path / "here" / STEP).exists()


def test_without_room_nothing_is_fetched(store: GcsServer, tmp_path: Path) -> None:
    path = save(tmp_path / "disk", 4)
    tree = json.loads((path / MANIFEST).read_text())
    tree["files"]["config.json"]["size"] = 10**18
    (path / MANIFEST).write_text(json.dumps(tree))
    put_directory(store, path, f"run/{STEP}")
    with pytest.raises(OSError, match=r"bytes are needed, but \d+ are free; free some space"):
        fetch_copy(place() / STEP, tmp_path / "here" / STEP)
    assert kept(tmp_path / "here") == [f".tmp-fetched-{STEP}"]


def test_what_breaks_off_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, here = save(tmp_path / "disk", 4), tmp_path / "here" / STEP
    with troubled(monkeypatch) as (store, proxy):
        put_directory(store, path, f"run/{STEP}")
        proxy.add(Truncate(100), kind="range", times=1)  # asked for again
        proxy.add(ACCESS_DENIED, kind="range", first=6)
        with pytest.raises(BadRequest, match="the store refuses it"):
            fetch_copy(place() / STEP, here)
        proxy.reset()
        size = sum(entry.size for entry in read_manifest(path).values())
        assert 0 < fetch_copy(place() / STEP, here) < size
        assert same(path, here)


def test_a_part_of_another_checkpoint_is_not_kept(store: GcsServer, tmp_path: Path) -> None:
    path, here = save(tmp_path / "disk", 4), tmp_path / "here"
    put_directory(store, path, f"run/{STEP}")
    left = here / f".tmp-fetched-{STEP}"
    shutil.copytree(path, left)
    (left / "job.json").write_bytes(b"x")  # half of it came
    (left / MANIFEST).write_bytes((path / MANIFEST).read_bytes())
    assert fetch_copy(place() / STEP, here / STEP) == (path / "job.json").stat().st_size
    assert same(path, here / STEP)
    shutil.copytree(save(tmp_path / "other", 4, seed=9), left)
    shutil.rmtree(here / STEP)
    assert fetch_copy(place() / STEP, here / STEP) > (path / "job.json").stat().st_size
    assert same(path, here / STEP)
