"""A run of the trainer, and what its trackers are told of it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from harness.launching import job, run
from tests.daemon.trainer.reporting.trackers.tracker_stand_ins import TOLD, install, told
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotoolsd.trainer.reporting.trackers.tracker_feed import (
    SAID,
    TRACKED,
    TrackerFeed,
    config_for_tracker,
    start_tracking,
    tracked_run,
)


def test_what_is_told_has_no_secret(tmp_path: Path) -> None:
    tree = job(tmp_path / "text", name="tiny", metrics={"wandb": "p"})
    tree |= {"env": {"API_KEY": "sesame", "N": "1"}, "captured_env": {"HOME": "/root"}}
    tree |= {"notify": {"webhook": "https://host/secret"}}
    told = config_for_tracker(job_from_dict(tree, source="job"))
    assert told["env"] == {"API_KEY": "***", "N": "***"}
    assert told["train"]["learning_rate"] == 1e-2
    assert "notify" not in told
    assert "captured_env" not in told


def test_a_directory_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    tree = job(tmp_path / "text", metrics={"mlflow": "e"}, output_dir=str(tmp_path / "file"))
    said: list[str] = []
    assert start_tracking(job_from_dict(tree, source="job"), tmp_path, None, said.append) == []
    assert said[0].startswith("mlflow: no steps are logged there (")


@pytest.mark.torch
@pytest.mark.dear(25, "two starts of a rank with packages of their own")
def test_a_run_that_is_resumed_goes_on_at_its_trackers(tmp_path: Path, text: Path) -> None:
    seen = tmp_path / "told"
    packages = install(tmp_path / "packages")
    env = {"PYTHONPATH": str(packages), TOLD: str(seen), "MLFLOW_TRACKING_URI": "http://host"}
    tree: dict[str, Any] = job(
        text,
        metrics={"wandb": "tiny", "mlflow": "exp"},
        env=env,
        train={"steps": 2},
        output_dir=str(tmp_path / "out"),
    )
    first = run(tmp_path / "job" / "1", tree)
    assert "wandb: logs only into " in first.log()
    tree["train"]["steps"] = 3
    second = run(tmp_path / "job" / "2", tree)
    ids = {begun["id"] for begun in told(seen, "init")}
    assert len(ids) == 1
    assert told(seen, "run") == [{"tag": ids.pop(), "name": None}]
    losses = {**first.losses(), **second.losses()}
    of_mlflow = [line for line in told(seen, "log") if set(line) == {"step", "loss"}]
    assert {line["step"]: line["loss"] for line in of_mlflow} == pytest.approx(losses)
    of_wandb = [line["step"] for line in told(seen, "log") if "lr" in line and "loss" in line]
    assert of_wandb == [1, 2, 1, 2, 3]  # each of wandb's files is whole
    assert [end.get("ended", end.get("status")) for end in told(seen, "finish")].count("done") == 2


JOB, OTHER = Path("/state/jobs/7"), Path("/state/jobs/8")


def test_a_run_stays_who_it_is_over_restarts_and_resumes(tmp_path: Path) -> None:
    first = tracked_run(tmp_path, JOB, continues=False)
    assert tracked_run(tmp_path, JOB, continues=False) == first
    assert tracked_run(tmp_path, JOB, continues=True) == first
    assert tracked_run(tmp_path, OTHER, continues=True) == first


def test_another_job_that_begins_there_is_another_run(tmp_path: Path) -> None:
    first = tracked_run(tmp_path, JOB, continues=False)
    second = tracked_run(tmp_path, OTHER, continues=False)
    assert second.id != first.id
    assert tracked_run(tmp_path, OTHER, continues=False) == second


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"id": 5, "job": "x"}', '{"id": "../../../x1", "job": "x"}']
)
def test_a_file_of_somebody_else_is_no_identity(tmp_path: Path, text: str) -> None:
    (tmp_path / TRACKED).write_text(text)
    found = tracked_run(tmp_path, JOB, continues=True)
    assert found.job == str(JOB)
    assert found.id.isalnum()
    assert [path.name for path in tmp_path.iterdir()] == [TRACKED]


COPY = "import sys; sys.stdout.flush(); open(sys.argv[1], 'w').write(sys.stdin.read())"
HANG = "import time; time.sleep(3600)"


def feed(code: str, *arguments: str, close_seconds: float = 60, most: int = 20_000) -> TrackerFeed:
    """A feed of a process that runs `code`."""
    return TrackerFeed(
        "wandb",
        {"id": "x"},
        command=(sys.executable, "-S", "-c", code, *arguments),
        close_seconds=close_seconds,
        most_waiting=most,
    )


def test_lines_come_in_order_and_the_end_at_the_end(tmp_path: Path) -> None:
    tracked = feed(COPY, str(tmp_path / "lines"))
    assert tracked.append(1, {"loss": float("nan")}) is None
    assert tracked.append(2, {"loss": 0.5}) is None
    tracked.ends_as("done")
    assert tracked.close() is None
    assert (tmp_path / "lines").read_text().splitlines() == [
        '{"id": "x"}',
        '{"step": 1, "fields": {"loss": NaN}}',
        '{"step": 2, "fields": {"loss": 0.5}}',
        '{"end": "done"}',
    ]


def test_one_that_hangs_is_noted_once_and_ended() -> None:
    tracked = feed(HANG, close_seconds=0.2, most=5)
    fields = {"loss": 1.0, "name" * 5000: 1.0}  # of which a few fill the pipe
    said = [tracked.append(step, fields) for step in range(50)]
    assert [problem for problem in said if problem] == [
        "5 steps wait for it already, and it makes no progress"
    ]
    assert tracked.close() == "it did not end within 0.2 s, and was killed"


def test_one_that_ends_is_noted_once() -> None:
    tracked = feed("raise SystemExit(7)")
    tracked._process.wait()
    said = [tracked.append(step, {}) for step in range(3)]
    assert [problem for problem in said if problem] == ["its process ended (7)"]
    assert tracked.close() is None


def test_one_that_ends_while_nothing_is_handed_over_is_noted_at_the_end() -> None:
    tracked = feed("import sys; sys.stdin.read(); raise SystemExit(7)")
    assert tracked.append(1, {}) is None
    assert tracked.close() == "its process ended (7)"


def test_one_that_has_said_why_is_not_noted_again() -> None:
    tracked = feed(f"raise SystemExit({SAID})")
    tracked._process.wait()
    assert tracked.append(1, {}) is None
    assert tracked.close() is None
