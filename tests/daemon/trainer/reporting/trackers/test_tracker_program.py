"""The process of a tracker, with packages that take the place of wandb's and MLflow's, and with the
real ones where they are installed."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.started import run
from tests.daemon.trainer.reporting.trackers.tracker_stand_ins import TOLD, TROUBLE, install, told
from zerotoolsd.trainer.reporting.trackers.tracker_feed import PROGRAM
from zerotoolsd.trainer.reporting.trackers.tracker_program import SAID, earlier_steps

SECONDS = 60
ID = "abcdefghij12"
STEP = {"step": 3, "fields": {"loss": 2.5}}


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """The packages that take the place of the trackers' own."""
    return install(tmp_path / "packages")


def opening(tmp_path: Path, **changes: Any) -> dict[str, Any]:
    """What a rank says first."""
    return {
        "project": "team/tiny",
        "id": ID,
        "name": "job",
        "directory": str(tmp_path),
        "config": {"seed": 7, "train": {"steps": 4, "optimizer": None}},
        "offline": None,
        "first": 1,
        "history": str(tmp_path / "metrics.jsonl"),
        **changes,
    }


def process(
    tmp_path: Path, tracker: str, lines: list[dict[str, Any]], **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run the program on `lines`."""
    packages = tmp_path / "packages"
    there = {"PYTHONPATH": str(packages), TOLD: str(tmp_path / "told")} if packages.exists() else {}
    (tmp_path / "lines").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with (tmp_path / "lines").open() as pipe:
        return run(
            [sys.executable, "-P", str(PROGRAM), tracker],
            stdin=pipe,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **there, **variables},
        )


@pytest.mark.usefixtures("packages")
def test_wandb_gets_steps_over_an_axis_of_their_own(tmp_path: Path) -> None:
    lines = [opening(tmp_path), STEP, {"step": 2, "fields": {"loss": math.nan}}, {"end": "done"}]
    done = process(tmp_path, "wandb", lines)
    assert (done.returncode, done.stdout) == (0, "")
    seen = tmp_path / "told"
    (begun,) = told(seen, "init")
    assert (begun["entity"], begun["project"], begun["id"]) == ("team", "tiny", ID)
    assert (begun["mode"], begun["resume"]) == ("online", "allow")
    assert {"name": "*", "over": "step"} in told(seen, "metric")
    logged = told(seen, "log")
    assert logged[0] == {"loss": 2.5, "step": 3}
    assert math.isnan(logged[1]["loss"])
    assert logged[1]["step"] == 2
    assert told(seen, "finish") == [{"exit_code": 0, "ended": "done"}]


@pytest.mark.usefixtures("packages")
def test_a_rank_that_crashed_leaves_a_failed_run(tmp_path: Path) -> None:
    assert process(tmp_path, "wandb", [opening(tmp_path), STEP]).returncode == 0
    assert told(tmp_path / "told", "finish") == [{"exit_code": 1, "ended": "failed"}]


@pytest.mark.usefixtures("packages")
def test_what_is_offline_begins_with_the_steps_before(tmp_path: Path) -> None:
    lines = [{"step": n, "time": 1.0, "loss": 1 / n, "why": "x"} for n in (1, 2, 3)]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (tmp_path / "metrics.jsonl").write_text(f'{text}["odd"]\n{{"step": 1, "lo')
    first = opening(tmp_path, offline="no login", first=3)
    done = process(tmp_path, "wandb", [first, STEP, {"end": "stopped"}])
    assert done.stdout == f"wandb: logs only into {tmp_path}/wandb: no login\n"
    assert [line["step"] for line in told(tmp_path / "told", "log")] == [1, 2, 3]
    assert told(tmp_path / "told", "log")[1] == {"step": 2, "loss": 0.5}


@pytest.mark.usefixtures("packages")
def test_a_server_that_does_not_answer_leaves_files_and_no_secret(tmp_path: Path) -> None:
    done = process(
        tmp_path,
        "wandb",
        [opening(tmp_path), STEP, {"end": "done"}],
        **{TROUBLE: "online", "WANDB_API_KEY": "sesame-sesame"},
    )
    assert done.returncode == 0
    assert "wandb: ConnectionError: no server takes ***\n" in done.stdout
    assert told(tmp_path / "told", "init")[0]["mode"] == "offline"
    assert len(told(tmp_path / "told", "log")) == 1


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize(
    ("trouble", "status", "sentence"),
    [
        ("init", SAID, "wandb: gets no steps (ConnectionError"),
        ("log", 0, "wandb: lacks steps from 3 on (RuntimeError"),
    ],
)
def test_trouble_is_said_once(tmp_path: Path, trouble: str, status: int, sentence: str) -> None:
    lines = [opening(tmp_path, offline="x"), STEP, {"step": 4, "fields": {}}, {"end": "done"}]
    done = process(tmp_path, "wandb", lines, **{TROUBLE: trouble})
    assert done.returncode == status
    assert done.stdout.count(sentence) == 1
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("packages")
def test_mlflow_finds_its_run_again(tmp_path: Path) -> None:
    uri = {"MLFLOW_TRACKING_URI": "http://user:pass@host"}
    first = opening(tmp_path, project="exp")
    assert process(tmp_path, "mlflow", [first, STEP, {"end": "stopped"}], **uri).returncode == 0
    changed = {**first, "first": 4, "config": {"seed": 8, "train": {"batch_size": 2}}}
    again = process(tmp_path, "mlflow", [changed, {**STEP, "step": 4}, {"end": "done"}], **uri)
    assert again.stdout == "mlflow: logs to run r1 at http://***@host\n"
    seen = tmp_path / "told"
    assert told(seen, "run") == [{"tag": ID, "name": "job"}]
    assert told(seen, "update") == [{"status": "RUNNING"}]
    assert told(seen, "params") == [
        {"params": {"seed": "7", "train.steps": "4"}},
        {"params": {"train.batch_size": "2"}},
    ]
    assert [line["step"] for line in told(seen, "log")] == [3, 4]
    assert told(seen, "finish") == [{"status": "KILLED"}, {"status": "FINISHED"}]


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize("tracker", ["wandb", "mlflow"])
def test_steps_that_did_not_arrive_before_a_crash_are_logged(tmp_path: Path, tracker: str) -> None:
    lines = [{"step": n, "time": 1.0, "loss": 1 / n} for n in range(1, 9)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for first in (3, 7):  # one step arrives; a checkpoint of step 6 is there
        begun = opening(tmp_path, first=first)
        assert process(tmp_path, tracker, [begun, {**STEP, "step": first}]).returncode == 0
    assert [line["step"] for line in told(tmp_path / "told", "log")] == [*range(1, 8)]


def test_no_history_is_none(tmp_path: Path) -> None:
    assert list(earlier_steps(tmp_path / "metrics.jsonl", range(1, 10))) == []


@pytest.mark.trackers
def test_the_real_wandb_offline(tmp_path: Path) -> None:
    for first in (3, 4):
        lines = [opening(tmp_path, offline="no login", first=first), {**STEP, "step": first}]
        done = process(tmp_path, "wandb", [*lines, {"end": "done"}])
        assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "wandb").glob(f"offline-run-*/run-{ID}.wandb"))) == 2


@pytest.mark.trackers
def test_the_real_mlflow_goes_on_in_its_run(tmp_path: Path) -> None:
    for number in (3, 4, 4):
        lines = [opening(tmp_path, offline="no server", project="exp"), {**STEP, "step": number}]
        done = process(tmp_path, "mlflow", [*lines, {"end": "done"}])
        assert done.returncode == 0, done.stdout + done.stderr
    code = (
        "import sys; from mlflow.tracking import MlflowClient as C; c = C(sys.argv[1]);"
        "e = c.get_experiment_by_name('exp'); (r,) = c.search_runs([e.experiment_id]);"
        "print([m.step for m in c.get_metric_history(r.info.run_id, 'loss')], r.info.status, "
        "r.data.params['train.steps'])"
    )
    place = done.stdout.split(" logs to ")[1].split(":", 1)
    uri = f"{place[0]}:{place[1].splitlines()[0].rsplit(':', 1)[0]}"
    allowed = {"MLFLOW_ALLOW_FILE_STORE": "true", "PATH": os.environ["PATH"]}
    seen = run(
        [sys.executable, "-c", code, uri],
        capture_output=True,
        text=True,
        env=allowed,
        timeout=SECONDS,
    )
    assert seen.stdout.strip() == "[3, 4, 4] FINISHED 4", seen.stderr
