from __future__ import annotations

import shutil
from pathlib import Path

from tests.golden_files import JOB
from zerotools import formats
from zerotools.ops.inspection.inspect import inspect, to_json


def test_the_facts_of_a_job(tmp_path: Path) -> None:
    inspection = inspect(formats.read(JOB))
    described = to_json(inspection)
    assert described["schema"] == "zerotools.inspect/1"
    facts = ("format", "stage", "world_size", "step", "parameters")
    assert [described[fact] for fact in facts] == ["dcp", 3, 2, 3, 7088]
    assert described["aliases"] == {"lm_head.weight": "model.embed_tokens.weight"}
    assert [role["role"] for role in described["roles"]] == [
        "param",
        "exp_avg",
        "exp_avg_sq",
        "step",
    ]
    assert described["problems"] == []
    tensor = next(t for t in described["tensors"] if t["name"] == "model.norm.weight")
    assert tensor == {
        "name": "model.norm.weight",
        "role": "param",
        "dtype": "float32",
        "shape": [16],
    }
    claimed = sum(role["bytes"] for role in described["roles"])
    files = sum(file["bytes"] for file in described["files"])
    assert files - described["unclaimed_bytes"] == claimed


def test_a_lost_file_is_a_problem_that_names_file_and_tensors(tmp_path: Path) -> None:
    damaged = tmp_path / "step-00000003"
    shutil.copytree(JOB, damaged)
    (damaged / "dcp/__1_0.distcp").unlink()
    problems = inspect(formats.read(damaged)).problems
    assert any(problem.file == "dcp/__1_0.distcp" for problem in problems)
    holes = {problem.tensor for problem in problems if problem.tensor}
    assert "model.embed_tokens.weight" in holes
