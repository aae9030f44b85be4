"""What the daemon thins of a running job, and what stays."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.golden_files import JOB
from zerotools.core.errors import DaemonUnreachable
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.runs import checkpoint_dirs
from zerotools.runs.manifest import write_manifest
from zerotools.runs.record import read_record, write_record
from zerotools.runs.thinned import is_thinned, is_workspace, workspace_of
from zerotoolsd import thinning

SOCKET = Path("/nobody/api.sock")


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Four checkpoints of a job, of which the newest is damaged."""
    for step in (3, 6, 9, 12):
        path = tmp_path / checkpoint_dirs.directory_name(step)
        shutil.copytree(JOB, path)
        write_record(path, replace(read_record(path), step=step))
        write_manifest(path)
    next((tmp_path / "step-00000012" / "dcp").glob("*.distcp")).write_bytes(b"cut off")
    return tmp_path


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the daemon says of its jobs."""
    found: list[dict[str, Any]] = []

    def told(self: DaemonClient, *, state: str, **_: object) -> list[dict[str, Any]]:
        return [job for job in found if job["state"] == state]

    monkeypatch.setattr(DaemonClient, "jobs", told)
    return found


def thinned(output: Path) -> list[int]:
    listed = checkpoint_dirs.listing(output)
    return [checkpoint_dirs.step_of(path.name) or 0 for path in listed if is_thinned(path)]


def test_the_newest_that_are_whole_stay(output: Path, jobs: list[dict[str, Any]]) -> None:
    own = {"id": 7, "state": "running", "output_dir": str(output), "attempts": [], "spec": {}}
    jobs.append({**own, "attempts": [{"resumed_from": str(output / "step-00000003")}]})
    assert thinning.thin_older(output, 1, SOCKET, 7, None) == 0
    assert thinned(output) == [6, 3]
    assert checkpoint_dirs.choose(output).path == output / "step-00000009"
    assert thinning.thin_older(output, 1, SOCKET, 7, None) == 0


def test_what_is_named_and_what_others_need_stays(
    output: Path, jobs: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    other = {"id": 8, "name": "next", "state": "queued", "attempts": []}
    jobs.append({**other, "spec": {"resume_from": str(output / "step-00000003")}})
    assert thinning.thin_older(output, 1, SOCKET, 7, output / "step-00000006") == 0
    assert thinned(output) == []
    assert "is needed by job 8 (next), which is queued" in capsys.readouterr().out


def test_without_an_answer_nothing_is_thinned(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DaemonUnreachable):
        thinning.thin_older(output, 1, output / "no.sock", 7, None)
    monkeypatch.setattr("os.nice", lambda _: 0)
    assert thinning.main([str(output), "1", str(output / "no.sock"), "7"]) == 1
    assert thinned(output) == []


def test_one_that_fails_does_not_stop_the_others(
    output: Path, jobs: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    next((output / "step-00000006" / "dcp").glob("*.distcp")).write_bytes(b"cut off")
    assert thinning.thin_older(output, 1, SOCKET, 7, None) == 1
    assert thinned(output) == [3]
    assert "step-00000006 has problems, and nothing was changed" in capsys.readouterr().err


def test_the_best_stays_and_what_a_killed_run_left_goes(
    output: Path, jobs: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    (output / "best").write_text("step-00000003\n")
    for name in ("step-00000001", "step-00000009"):  # the first was deleted by the ranks
        left = workspace_of(output / name) / name
        left.mkdir(parents=True)
        (left / "data").write_bytes(b"x" * 9000)
    assert thinning.thin_older(output, 1, SOCKET, 7, None) == 0
    assert thinned(output) == [6]
    assert "removed what a killed run had left: 18000 bytes" in capsys.readouterr().out
    assert not any(map(is_workspace, (path.name for path in output.iterdir())))


def test_a_job_that_comes_meanwhile_keeps_what_it_needs(
    output: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Between the copy and the exchange."""
    asked: list[str] = []
    came = {"id": 8, "name": "next", "state": "queued", "attempts": []}

    def told(self: DaemonClient, *, state: str, **_: object) -> list[dict[str, Any]]:
        asked.append(state)
        is_there = asked.count("queued") > 4  # twice at first, and twice before the copy
        job = {**came, "spec": {"resume_from": str(output / "step-00000006")}}
        return [job] if state == "queued" and is_there else []

    monkeypatch.setattr(DaemonClient, "jobs", told)
    assert thinning.thin_older(output, 1, SOCKET, 7, None) == 1
    assert thinned(output) == [3]
    assert "step-00000006 is needed by job 8 (next), which is queued" in capsys.readouterr().err
    checkpoint_dirs.check(output / "step-00000006")
