"""The process that copies a job's checkpoints to a store, and the one that fetches them."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.stores.gcs import GcsServer
from tests.io.stores.far import served
from tests.ops.mirroring.made import place, same, save
from zerotools.core.errors import HostUnreachable
from zerotools.runs.upload_records import FETCHED
from zerotoolsd.children import mirror


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[GcsServer]:
    with served(monkeypatch) as store:
        yield store


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Where a supervisor listens."""
    monkeypatch.setattr("os.nice", lambda _: 0)
    monkeypatch.setenv("ZEROTOOLS_NOTIFY", str(tmp_path / "notify.sock"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as link:
        link.bind(str(tmp_path / "notify.sock"))
        yield link


def said(link: socket.socket) -> list[dict[str, Any]]:
    found = []
    while True:
        try:
            found.append(json.loads(link.recv(4096)))
        except BlockingIOError:
            return found


def run(what: str, output_dir: Path, *, job: str = "job 1", **changes: Any) -> int:
    settings = {
        "output_dir": str(output_dir),
        "job": job,
        "upload_to": str(place()),
        "keep_last": None,
        "keep_every": None,
        "resume_from": None,
        **changes,
    }
    return mirror.main([what, json.dumps(settings)], wait=lambda _: None)


def test_what_is_sent_and_fetched_is_told(
    store: GcsServer, told: socket.socket, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    assert run("fetch", out) == 0
    assert said(told) == []
    path = save(out, 4)
    assert run("upload", out) == 0
    (sent,) = said(told)
    assert (sent["event"], sent["step"]) == ("uploaded", 4)
    assert sent["path"] == f"{place()}/step-00000004"
    assert run("fetch", tmp_path / "new disk") == 0
    (fetched,) = said(told)
    assert (fetched["event"], fetched["step"]) == ("fetched", 4)
    assert same(path, tmp_path / "new disk" / "step-00000004")


def test_a_start_elsewhere_is_fetched_beside_the_run_s_own(
    store: GcsServer, told: socket.socket, tmp_path: Path
) -> None:
    run("fetch", tmp_path / "old")
    path = save(tmp_path / "old", 4)
    run("upload", tmp_path / "old")
    start = {"upload_to": None, "resume_from": f"{place()}/latest"}
    assert run("fetch", tmp_path / "new", **start) == 0
    assert same(path, tmp_path / "new" / FETCHED)
    own = {"upload_to": f"{place()}-2", "resume_from": str(place())}
    assert run("fetch", tmp_path / "third", **own) == 0
    assert same(path, tmp_path / "third" / FETCHED)


def test_a_copy_that_is_not_whole_is_named_and_the_one_before_it_is_fetched(
    store: GcsServer, told: socket.socket, tmp_path: Path
) -> None:
    run("fetch", tmp_path / "old")
    for step in (2, 4):
        save(tmp_path / "old", step)
    run("upload", tmp_path / "old")
    del store.objects[store.bucket]["run/step-00000004/config.json"]
    said(told)
    elsewhere = {"upload_to": None, "resume_from": str(place())}
    for name, more in (("new", {}), ("other", elsewhere)):
        assert run("fetch", tmp_path / name, **more) == 0
        skipped, fetched = said(told)
        assert (skipped["event"], skipped["step"]) == ("skipped_checkpoint", 4)
        assert skipped["path"] == f"{place()}/step-00000004"
        assert "config.json is missing" in skipped["why"]
        assert fetched["event"] == "fetched"


def test_what_cannot_be_done_is_said_and_is_no_success(
    store: GcsServer,
    told: socket.socket,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run("fetch", tmp_path / "mine")
    save(tmp_path / "mine", 4)
    run("upload", tmp_path / "mine")
    assert run("fetch", tmp_path / "other", job="job 2") == 1
    assert "holds checkpoints of another run" in capsys.readouterr().err.splitlines()[-1]
    said(told)
    save(tmp_path / "other", 4)
    assert run("upload", tmp_path / "other") == 1
    (failed,) = said(told)
    assert failed["event"] == "upload_failed"
    assert "this run stops uploading to it" in failed["why"]


def test_the_last_that_is_said_is_what_failed(
    store: GcsServer, told: socket.socket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run("fetch", tmp_path)
    for step in (2, 4):
        save(tmp_path, step)
    (tmp_path / "step-00000004" / "config.json").unlink()
    assert run("upload", tmp_path) == 1
    said = capsys.readouterr()
    assert "uploaded gs://checkpoints/run/step-00000002" in said.out
    assert said.err.splitlines()[-1].startswith("1 checkpoint not uploaded: ")


def test_a_store_that_does_not_answer_is_waited_for_but_a_run_goes_on_from_its_disk(
    store: GcsServer, told: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def silent(*_: object, **__: object) -> None:
        raise HostUnreachable("the store does not answer")

    run("fetch", tmp_path)
    save(tmp_path, 4)
    monkeypatch.setattr("zerotools.ops.mirroring.prefix_owner.read_claim", silent)
    assert run("fetch", tmp_path) == 0
    assert run("fetch", tmp_path / "empty") == os.EX_TEMPFAIL
    assert run("upload", tmp_path) == os.EX_TEMPFAIL
    first, last = said(told)
    assert (first["event"], last["event"]) == ("upload_failed", "upload_failed")
    assert (
        first["why"]
        == "the store does not answer; the run continues with its checkpoints on the disk"
    )


def test_a_disk_without_room_is_not_the_job_s_fault(
    store: GcsServer, told: socket.socket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    run("fetch", tmp_path / "old")
    save(tmp_path / "old", 4)
    run("upload", tmp_path / "old")
    monkeypatch.setattr("zerotools.ops.mirroring.checkpoint_mirror.fetch_copy", full)
    assert run("fetch", tmp_path / "new") == os.EX_TEMPFAIL
