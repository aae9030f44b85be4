"""What the daemon thins of a running job, and what stays."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.http.api.fakes import FakeService
from tests.daemon.http.api.made_views import a_job, a_view, an_attempt
from tests.daemon.http.api.serving import serving
from tests.golden_files import JOB
from zerotools.core.errors import DaemonUnreachable
from zerotools.runs import find_job_checkpoints
from zerotools.runs.manifest import write_manifest
from zerotools.runs.thinning_record import is_thinned, is_workspace, workspace_of
from zerotools.runs.training_record import read_record, write_record
from zerotools.runs.upload_records import record_upload
from zerotoolsd.children import thin
from zerotoolsd.interface.api_types import JobView


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """Four checkpoints of a job, of which the newest is damaged."""
    for step in (3, 6, 9, 12):
        path = tmp_path / find_job_checkpoints.directory_name(step)
        shutil.copytree(JOB, path)
        write_record(path, replace(read_record(path), step=step))
        write_manifest(path)
    next((tmp_path / "step-00000012" / "dcp").glob("*.distcp")).write_bytes(b"cut off")
    return tmp_path


class Daemon(FakeService):
    """A daemon, at `socket`; `happens` is called when it was asked for queued jobs `asks`
    times."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.socket = directory / "api.sock"
        self.asks = 0
        self.happens: Callable[[], None] | None = None

    async def jobs(self, *, states: Collection[str] | None = None, **keys: Any) -> list[JobView]:
        if states == ("queued",) and self.happens is not None:
            self.asks -= 1
            if self.asks < 0:
                self.happens()
        return await super().jobs(states=states, **keys)


@pytest.fixture
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    found = Daemon(tmp_path_factory.mktemp("daemon"))
    with serving(found, found.socket):
        yield found


def next_job(resume_from: Path) -> JobView:
    """Job 8, which is queued and needs a checkpoint."""
    return a_view(8, a_job(name="next", resume_from=str(resume_from)))


def thinned(output: Path) -> list[int]:
    listed = find_job_checkpoints.list_checkpoints(output)
    return [find_job_checkpoints.step_of(path.name) or 0 for path in listed if is_thinned(path)]


def test_the_newest_that_are_whole_stay(output: Path, daemon: Daemon) -> None:
    attempt = an_attempt(resumed_from=str(output / "step-00000003"))
    daemon.views[7] = a_view(
        7, a_job(), state="running", output_dir=str(output), attempts=(attempt,)
    )
    assert thin.thin_older(output, 1, daemon.socket, 7, None) == 0
    assert thinned(output) == [6, 3]
    assert find_job_checkpoints.newest_valid(output).path == output / "step-00000009"
    assert thin.thin_older(output, 1, daemon.socket, 7, None) == 0


def test_what_is_named_and_what_others_need_stays(
    output: Path, daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    daemon.views[8] = next_job(output / "step-00000003")
    assert thin.thin_older(output, 1, daemon.socket, 7, output / "step-00000006") == 0
    assert thinned(output) == []
    assert "is needed by job 8 (next), which is queued" in capsys.readouterr().out


def test_without_an_answer_nothing_is_thinned(
    output: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DaemonUnreachable):
        thin.thin_older(output, 1, output / "no.sock", 7, None)
    monkeypatch.setattr("os.nice", lambda _: 0)
    assert thin.main([str(output), "1", str(output / "no.sock"), "7"]) == 1
    assert thinned(output) == []


def test_one_that_fails_does_not_stop_the_others(
    output: Path, daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    next((output / "step-00000006" / "dcp").glob("*.distcp")).write_bytes(b"cut off")
    assert thin.thin_older(output, 1, daemon.socket, 7, None) == 1
    assert thinned(output) == [3]
    assert "step-00000006 has problems, and nothing was changed" in capsys.readouterr().err


def test_the_best_stays_and_what_a_killed_run_left_goes(
    output: Path, daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    (output / "best").write_text("step-00000003\n")
    for name in ("step-00000001", "step-00000009"):  # the first was deleted by the ranks
        left = workspace_of(output / name) / name
        left.mkdir(parents=True)
        (left / "data").write_bytes(b"x" * 9000)
    assert thin.thin_older(output, 1, daemon.socket, 7, None) == 0
    assert thinned(output) == [6]
    assert "removed files of a killed run: 18000 bytes" in capsys.readouterr().out
    assert not any(map(is_workspace, (path.name for path in output.iterdir())))


def test_one_that_is_being_uploaded_stays_until_then(
    output: Path, daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    record_upload(output, output / "step-00000006")
    assert thin.thin_older(output, 1, daemon.socket, 7, None) == 0
    assert thinned(output) == [3]
    record_upload(output, None)

    # Between the copy and the exchange.
    daemon.asks, daemon.happens = 2, lambda: record_upload(output, output / "step-00000006")
    assert thin.thin_older(output, 1, daemon.socket, 7, None) == 1
    assert thinned(output) == [3]
    assert "step-00000006 is being uploaded, and is thinned later" in capsys.readouterr().err
    find_job_checkpoints.verify_checkpoint_files(output / "step-00000006")


def test_a_job_that_comes_meanwhile_keeps_what_it_needs(
    output: Path, daemon: Daemon, capsys: pytest.CaptureFixture[str]
) -> None:
    """Between the copy and the exchange."""
    coming = next_job(output / "step-00000006")
    # Twice before each of them.
    daemon.asks, daemon.happens = 4, lambda: daemon.views.update({coming.id: coming})
    assert thin.thin_older(output, 1, daemon.socket, 7, None) == 1
    assert thinned(output) == [3]
    assert "step-00000006 is needed by job 8 (next), which is queued" in capsys.readouterr().err
    find_job_checkpoints.verify_checkpoint_files(output / "step-00000006")
