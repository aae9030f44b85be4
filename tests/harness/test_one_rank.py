"""The rank that is started in a terminal gets a job that the trainer takes. None is started."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from harness.one_rank import job_tree, prepare
from zerotoolsd.trainer.rank.rank_settings import read_spec

JOB = """
device = "cpu"
ranks = 1
model.path = "/models/llama"
data.text = ["/corpus.txt"]
data.sequence_length = 8
train = { steps = 2, batch_size = 1 }
"""


def test_the_tiny_model_of_the_tests(tmp_path: Path) -> None:
    command = prepare(tmp_path / "run", job_tree(None, steps=3))
    assert command[-2:] == ["--run-dir", str(tmp_path / "run")]
    spec = read_spec(tmp_path / "run")
    assert (spec.world_size, spec.train.steps) == (1, 3)
    assert spec.output_dir == str(tmp_path / "run" / "out")


def test_the_job_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(JOB)
    prepare(tmp_path, job_tree(file, steps=4))
    assert read_spec(tmp_path).model.path == "/models/llama"
    assert json.loads((tmp_path / "spec.json").read_text())["output_dir"] == str(tmp_path / "out")


def test_a_job_of_more_ranks_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "job.toml"
    file.write_text(JOB.replace("ranks = 1", "ranks = 2").replace("_size = 1 }", "_size = 2 }"))
    with pytest.raises(SystemExit, match="has 2 ranks; set ranks = 1"):
        job_tree(file, steps=4)
