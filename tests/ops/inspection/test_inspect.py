from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tests.golden_files import DEEPSPEED, GOLDEN, JOB, TORCH
from zerotools import formats
from zerotools.core.errors import BadFile, Unsupported, ZerotoolsError
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


@dataclass(frozen=True)
class Unreadable(Mapping[str, Any]):
    """Values beside the tensors, none of which can be read."""

    keys_there: tuple[str, ...]
    why: ZerotoolsError

    def __getitem__(self, key: str) -> Any:
        raise self.why

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys_there)

    def __len__(self) -> int:
        return len(self.keys_there)


def test_a_damaged_value_is_a_problem_and_one_that_is_not_read_a_note() -> None:
    whole = formats.read(TORCH / "fsdp2-torchtitan-w2" / "checkpoint")
    keys = tuple(whole.state)
    bad = inspect(replace(whole, state=Unreadable(keys, BadFile("lr is damaged"))))
    assert [problem.message for problem in bad.problems] == ["lr is damaged"]
    odd = inspect(replace(whole, state=Unreadable(keys, Unsupported("lr is odd"))))
    assert (odd.problems, odd.notes[-1]) == ((), "lr is odd")
    for described in map(to_json, (bad, odd)):
        assert described["param_groups"] is None
        assert described["parameters"] == 108


def test_a_file_that_a_problem_names_already_is_not_named_again(tmp_path: Path) -> None:
    damaged = tmp_path / "universal"
    shutil.copytree(DEEPSPEED / "universal-z2-bf16-w3" / "checkpoint", damaged)
    (lost,) = damaged.glob("*/zero/optimizer_state.pt")
    lost.unlink()
    inspection = inspect(formats.read(damaged))
    assert [problem.message for problem in inspection.problems] == [
        f"{lost} is missing; copy or download it again"
    ]


def test_a_config_that_cannot_say_what_is_quantised_is_a_problem(tmp_path: Path) -> None:
    model = GOLDEN / "transformers-5.23.0" / "fp8-blocks" / "model"
    copy = Path(shutil.copytree(model, tmp_path / "model"))
    assert inspect(formats.read_any(copy)).problems == ()
    (copy / "config.json").write_text('{"quantization_config": [1]}')
    (problem,) = inspect(formats.read_any(copy)).problems
    assert "quantization_config is [1], but must be a table" in problem.message
