"""The command in this process: what it prints, and its exit status."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.golden_files import DEEPSPEED, JOB, TORCH
from tests.ops.verification.damage import flip, largest_record
from zerotools.cli.commands.verify import command

ZERO3 = DEEPSPEED / "z3-bf16-w2" / "checkpoint"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, [*map(str, arguments)], standalone_mode=False)


def test_a_whole_checkpoint() -> None:
    done = run(ZERO3)
    assert done.return_value == 0
    assert done.output.startswith(f"{ZERO3} is whole: ")
    assert json.loads(run(JOB, "--json").output)["verdict"] == "whole"


def test_damage_is_listed_and_is_exit_status_1(tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(ZERO3, path)
    file = next(path.rglob("*model_states.pt"))
    flip(file, largest_record(file))
    done = run(path, "--workers", 1, "--max-memory", "1MiB")
    assert done.return_value == 1
    first, second, *_ = done.output.splitlines()
    assert first == f"FAULTY: {path}: 2 findings"  # ranks have copies of buffers
    assert second.startswith(f"bytes: {file}: record ")


@pytest.mark.parametrize("arguments", [[], ["--fast"]])
def test_what_was_not_checked_is_said(arguments: list[str]) -> None:
    done = run(TORCH / "fsdp2-hf-sharded-w2" / "checkpoint", *arguments)
    assert done.return_value == 0
    assert "whole" not in done.output
    assert ("bytes were left out" if arguments else "no checksums and no manifest") in done.output
    found = json.loads(
        run(TORCH / "fsdp2-hf-sharded-w2" / "checkpoint", "--json", *arguments).output
    )
    assert found["verdict"] == "unchecked"
    assert found["fast"] is bool(arguments)
