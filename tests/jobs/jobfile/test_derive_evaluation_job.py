"""The job that evaluates another one is a job file like any other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.launching import job
from zerotools.integrations import evaluation_harness
from zerotools.jobs.jobfile.derive_evaluation_job import (
    HARNESS,
    evaluation_job,
    evaluation_name,
    is_evaluated,
)
from zerotools.jobs.jobfile.parse import given_of, job_from_dict
from zerotools.jobs.jobfile_tables.spec import JobSpec

DATA = {"tokens": ["/ids.npy"]}


def evaluated(evaluation: dict[str, Any], **changes: Any) -> JobSpec:
    tree = {**job(Path("/text")), "data": DATA, "model": {"path": "/model"}, "eval": evaluation}
    return job_from_dict({**tree, **changes}, source="job")


def test_it_takes_the_surroundings_and_one_rank_of_the_job_that_it_evaluates() -> None:
    spec = evaluated(
        {"tasks": ["a"]},
        device="cuda",
        ranks=None,
        gpus=[3, 5],
        python="/venv/bin/python",
        env={"HF_HOME": "/cache"},
        captured_env={},
        limits={"memory": "8GiB"},
        metrics={"wandb": "project", "jsonl": False},
        resume_from="/old/step-00000001",
        time_limit="2h",
    )
    found = evaluation_job(spec, "/out", "name")
    assert given_of(found) == {
        "name": "name",
        "engine": "script",
        "python": "/venv/bin/python",
        "device": "cuda",
        "gpus": [3],
        "env": {"HF_HOME": "/cache"},
        "captured_env": {},
        "limits": {"memory": "8GiB"},
        "metrics": {"jsonl": False},
        "script": {"command": [*HARNESS, "--tasks", "a"], "directory": "/", "evaluates": "/out"},
    }
    assert found.world_size == 1


def test_the_options_are_those_of_the_program() -> None:
    asked = {"tasks": ["a", "b*"], "task_dir": "/t", "few_shot": 0, "limit": 0.25, "batch_size": 8}
    words = evaluation_job(evaluated(asked), "/out", "name").script.command
    options = evaluation_harness.options_of(words[len(HARNESS) :])
    assert vars(options) == {
        "tasks": "a,b*",
        "include_path": "/t",
        "num_fewshot": 0,
        "limit": 0.25,
        "batch_size": "8",
        "device": "cpu",
    }
    plain = evaluation_job(evaluated({"tasks": ["a"]}), "/out", "name").script.command
    assert plain[2:] == ("--tasks", "a", "--device", "cpu")
    assert words[: len(HARNESS)] == ("-m", evaluation_harness.__name__)


@pytest.mark.parametrize(
    ("limit", "word"), [(1_234_567, "1234567"), (5.0, "5"), (0.12345678, "0.12345678")]
)
def test_a_limit_keeps_all_its_digits(limit: float, word: str) -> None:
    words = evaluation_job(evaluated({"tasks": ["a"], "limit": limit}), "/out", "name")
    assert words.script.command[4:6] == ("--limit", word)


def test_of_several_nodes_the_first_evaluates() -> None:
    assert is_evaluated(evaluated({"tasks": ["a"]}))
    assert not is_evaluated(evaluated({}))
    nodes = {"nodes": 2, "address": "10.0.0.1:29500", "node_rank": 1}
    assert not is_evaluated(evaluated({"tasks": ["a"]}, rendezvous=nodes, output_dir="/out"))


def test_a_long_name_leaves_room_for_its_ending() -> None:
    assert evaluation_name("run") == "run-eval"
    assert len(evaluation_name("r" * 200)) == 200
