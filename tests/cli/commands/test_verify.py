"""The command in this process: what it prints, and its exit status."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.golden_files import DEEPSPEED, JOB, TORCH
from tests.ops.verification.damage import flip, largest_record
from zerotools.cli.commands.verify import command
from zerotools.core.errors import BadRequest

ZERO3 = DEEPSPEED / "z3-bf16-w2" / "checkpoint"


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, [*map(str, arguments)], standalone_mode=False)


def test_a_whole_checkpoint() -> None:
    done = run(ZERO3)
    assert done.return_value == 0
    assert done.output.startswith(f"{ZERO3} is whole: ")
    assert done.output.endswith("\nWHOLE\n")
    found = json.loads(run(JOB, "--json").output)
    assert [found["verdict"], found["conclusion"], found["next"]] == ["whole", "WHOLE", None]


def test_damage_is_listed_and_is_exit_status_1(tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(ZERO3, path)
    file = next(path.rglob("*model_states.pt"))
    flip(file, largest_record(file))
    done = run(path, "--workers", 1, "--max-memory", "1MiB")
    assert done.return_value == 1
    first, second, *_ = done.output.splitlines()
    assert first == f"DAMAGED: {path}: 2 findings"  # ranks have copies of buffers
    assert second.startswith(f"bytes: {file}: record ")
    assert done.output.endswith("\nDAMAGED\n")


@pytest.mark.parametrize("arguments", [[], ["--fast"]])
def test_what_was_not_checked_is_said(arguments: list[str]) -> None:
    done = run(TORCH / "fsdp2-hf-sharded-w2" / "checkpoint", *arguments)
    assert done.return_value == 0
    assert "whole" not in done.output
    assert (
        "bytes were not checked" if arguments else "no checksums and no manifest"
    ) in done.output
    found = json.loads(
        run(TORCH / "fsdp2-hf-sharded-w2" / "checkpoint", "--json", *arguments).output
    )
    assert found["verdict"] == "unchecked"
    assert found["fast"] is bool(arguments)
    assert found["conclusion"] == "CANNOT TELL"
    *_, next_line, last = done.output.splitlines()
    assert last == "CANNOT TELL"
    assert next_line.startswith(f"next: {found['next']} (")


def test_the_next_command_makes_the_check_certain(tmp_path: Path) -> None:
    path = tmp_path / "run it"
    shutil.copytree(TORCH / "fsdp2-hf-sharded-w2" / "checkpoint", path)
    found = json.loads(run(path, "--json").output)
    _, _, *arguments = shlex.split(found["next"])
    assert "--write-manifest" in arguments
    run(*arguments)
    assert run(path).output.endswith("\nWHOLE\n")


def test_with_strict_only_a_whole_checkpoint_is_status_0() -> None:
    unchecked = TORCH / "fsdp2-hf-sharded-w2" / "checkpoint"
    assert run(ZERO3, "--strict").return_value == 0
    assert run(unchecked, "--strict").return_value == 1
    with pytest.raises(BadRequest, match="--strict always fails"):
        CliRunner().invoke(
            command,
            [str(unchecked), "--strict", "--fast"],
            standalone_mode=False,
            catch_exceptions=False,
        )


def test_the_place_of_the_manifest_is_checked_before_anything_is_read(tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(ZERO3, path)
    next(path.rglob("*optim_states.pt")).unlink()  # a finding, had it been looked for
    file = tmp_path / "no" / "such" / "m.json"
    with pytest.raises(BadRequest, match="is not a directory"):
        CliRunner().invoke(
            command,
            [str(path), "--write-manifest", str(file)],
            standalone_mode=False,
            catch_exceptions=False,
        )


def test_parts_together_say_what_one_run_says(tmp_path: Path) -> None:
    done = [run(ZERO3, "--part", f"{n}/3") for n in (1, 2, 3)]
    assert [each.return_value for each in done] == [0, 0, 0]
    assert done[1].output.startswith(f"part 2 of 3 of {ZERO3} is whole: ")
    path = tmp_path / "run"
    shutil.copytree(ZERO3, path)
    file = next(path.rglob("*rank_1*optim_states.pt"))
    flip(file, largest_record(file))
    faulty = [run(path, "--part", f"{n}/3", "--json") for n in (1, 2, 3)]
    assert sorted(each.return_value for each in faulty) == [0, 0, 1]
    (found,) = [json.loads(each.output) for each in faulty if each.return_value]
    assert [each["check"] for each in found["findings"]] == ["bytes"]
    assert found["parts"] == 3


@pytest.mark.parametrize("with_part", ["--fast", "--write-manifest=x.json"])
def test_what_no_part_can_do_is_refused(with_part: str) -> None:
    done = run(ZERO3, "--part", "1/2", with_part)
    assert isinstance(done.exception, BadRequest)
    assert re.search("leave (out )?--part", str(done.exception))
