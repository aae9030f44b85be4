"""A run of the trainer, and what its trackers are told of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.launching import job, run
from tests.daemon.trainer.reporting.trackers.tracker_stand_ins import TOLD, install, told
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotoolsd.trainer.reporting.trackers.tracking import start_tracking, told_of


def test_what_is_told_has_no_secret(tmp_path: Path) -> None:
    tree = job(tmp_path / "text", name="tiny", metrics={"wandb": "p"})
    tree |= {"env": {"API_KEY": "sesame", "N": "1"}, "captured_env": {"HOME": "/root"}}
    tree |= {"notify": {"webhook": "https://host/secret"}}
    told = told_of(job_from_dict(tree, source="job"))
    assert told["env"] == {"API_KEY": "***", "N": "***"}
    assert told["train"]["learning_rate"] == 1e-2
    assert "notify" not in told
    assert "captured_env" not in told


def test_a_directory_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    tree = job(tmp_path / "text", metrics={"mlflow": "e"}, output_dir=str(tmp_path / "file"))
    said: list[str] = []
    assert start_tracking(job_from_dict(tree, source="job"), tmp_path, None, said.append) == []
    assert said[0].startswith("mlflow: not logged to, training continues: ")


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
    assert "wandb: logs into " in first.log()
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
