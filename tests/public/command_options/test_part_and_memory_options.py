"""Which part a run does, and what the commands say of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.command_process import zerotools
from tests.cli.commands.test_checkpoint_commands import refused
from tests.golden_files import DEEPSPEED
from zerotools.core.errors import BadRequest
from zerotools.ops.execution.output_part import OutputPart
from zerotools.public.command_options.part_and_memory_options import part_of

SOURCE = DEEPSPEED / "z2-bf16-w2" / "checkpoint"
ARRAY = {
    "SLURM_ARRAY_TASK_ID": "6",
    "SLURM_ARRAY_TASK_MIN": "2",
    "SLURM_ARRAY_TASK_MAX": "8",
    "SLURM_ARRAY_TASK_COUNT": "4",
    "SLURM_ARRAY_TASK_STEP": "2",
}
STEP = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "3"}


@pytest.mark.parametrize(
    ("launcher", "environ", "part"),
    [
        ("torchrun", {"RANK": "0", "WORLD_SIZE": "4"}, (1, 4)),
        ("torchrun", {"RANK": "3", "WORLD_SIZE": "4"}, (4, 4)),
        ("slurm", STEP, (2, 3)),
        ("slurm", ARRAY, (3, 4)),
        ("slurm", {**ARRAY, **STEP}, (8, 12)),
        # A batch script, which is started once: what it was given tasks for is not this command.
        ("slurm", {**ARRAY, "SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, (3, 4)),
    ],
)
def test_launchers_say_which_part_it_is(
    launcher: str, environ: dict[str, str], part: tuple[int, int]
) -> None:
    assert part_of(launcher, environ) == OutputPart(*part)


@pytest.mark.parametrize(
    ("launcher", "environ", "why"),
    [
        ("torchrun", {"RANK": "0"}, "WORLD_SIZE is not set"),
        ("torchrun", {"RANK": "x", "WORLD_SIZE": "2"}, "RANK is 'x', which is not a number"),
        ("torchrun", {"RANK": "2", "WORLD_SIZE": "2"}, "task 2 of 2 is not a valid part"),
        ("slurm", {}, "neither a task of a job array"),
        ("slurm", {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, "neither a task of a job array"),
        ("slurm", {**ARRAY, "SLURM_ARRAY_TASK_COUNT": "3"}, "3 tasks from 2 to 8, with gaps"),
    ],
)
def test_what_is_not_known_is_refused(launcher: str, environ: dict[str, str], why: str) -> None:
    with pytest.raises(BadRequest, match=why):
        part_of(launcher, environ)


def test_parts_say_what_is_missing_and_the_last_one_that_it_is_there(tmp_path: Path) -> None:
    out = tmp_path / "out"
    reshard = ("reshard", SOURCE, out, "--world-size", 3, "--part")
    plan = zerotools(*reshard, "2/3", "--dry-run")
    assert "part 2 of 3 would write 6.0 KiB of" in plan.stdout
    assert not out.with_name("out.partial").exists()
    first = zerotools(*reshard, "3/3")
    assert (first.returncode, "incomplete parts: 1-2" in first.stdout) == (0, True)
    second = zerotools(*reshard, "2/3", "--json")
    told = json.loads(second.stdout)
    assert told["part"] == {
        "index": 2,
        "of": 3,
        "files": [
            {
                "name": "global_step2/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt",
                "begin": 0,
                "end": told["part"]["bytes"],
            }
        ],
        "bytes": told["part"]["bytes"],
        "missing": [1],
    }
    assert not out.exists()
    last = zerotools(*reshard, "1/3")
    assert f"all other parts are complete too, and {out} is ready" in last.stdout
    assert zerotools("verify", out).returncode == 0
    again = zerotools(*reshard, "3/3")
    assert (again.returncode, "all other parts are complete too" in again.stdout) == (0, True)


def test_what_cannot_be_done_in_parts_is_refused(tmp_path: Path) -> None:
    consolidate = ("consolidate", SOURCE, tmp_path / "out")
    for part in ("0/3", "4/3", "3", "1/0", "a/b"):
        assert refused(2, *consolidate, "--part", part)
    assert "reads the whole output back" in refused(2, *consolidate, "--part", "1/2", "--verify")
    both = refused(2, *consolidate, "--part", "1/2", "--part-from", "slurm")
    assert "leave one of them out" in both
