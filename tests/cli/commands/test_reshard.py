"""`zerotools reshard` as a process: settings, and one sentence for everything it refuses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.command_process import zerotools
from tests.cli.commands.test_checkpoint_commands import refused
from tests.golden_files import DEEPSPEED, JOB, TORCH

FLAT = DEEPSPEED / "z2-bf16-w2" / "checkpoint"
SLICED = DEEPSPEED / "z3-fp32-w2" / "checkpoint"


def test_another_stage_by_flags_or_by_the_configuration_of_the_run(tmp_path: Path) -> None:
    config = tmp_path / "ds.json"
    zero = {"stage": 3, "sub_group_size": 100}
    config.write_text(json.dumps({"zero_optimization": zero, "bf16": {"enabled": True}}))
    flags = ("--stage", 3, "--sub-group-size", 100, "--verify")
    by_flags = zerotools("reshard", FLAT, tmp_path / "a", "--world-size", 3, *flags)
    assert by_flags.returncode == 0, by_flags.stderr
    assert '"zero_optimization": {"stage": 3, "sub_group_size": 100}' in by_flags.stderr
    by_config = zerotools("reshard", FLAT, tmp_path / "b", "--world-size", 3, "--ds-config", config)
    assert by_config.returncode == 0, by_config.stderr
    assert "the resuming run needs" not in by_config.stderr
    names = sorted(path.relative_to(tmp_path / "a") for path in (tmp_path / "a").rglob("*.pt"))
    assert len(names) == 6
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


def test_nothing_is_done_where_nothing_would_change(tmp_path: Path) -> None:
    out = tmp_path / "out"
    for more in ((), ("--stage", 2), ("--round-robin", "off")):
        done = zerotools("reshard", FLAT, out, "--world-size", 2, *more)
        assert done.returncode == 0
        assert "already has this layout for 2 ranks; nothing was written" in done.stdout
    assert not out.exists()
    assert zerotools("reshard", FLAT, out, "--world-size", 2, "--force").returncode == 0
    changed = zerotools("reshard", FLAT, tmp_path / "on", "--world-size", 2, "--round-robin", "on")
    assert changed.returncode == 0
    assert (tmp_path / "on").is_dir()


def test_what_is_refused_writes_nothing(tmp_path: Path) -> None:
    out, config = tmp_path / "out", tmp_path / "ds.json"
    config.write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    three = ("--world-size", 3)
    parallel = DEEPSPEED / "tensor-parallel-z1-bf16-w4" / "checkpoint"
    without = DEEPSPEED / "z0-bf16-w2" / "checkpoint"
    universal = DEEPSPEED / "universal-z2-bf16-w3" / "checkpoint"
    weights = TORCH / "fsdp2-hf-sharded-w2" / "checkpoint"
    for status, words, arguments in (
        (2, "--world-size is 0", (FLAT, out, "--world-size", 0)),
        (2, "--stage is 3", (FLAT, out, *three, "--stage", 3, "--ds-config", config)),
        (2, "is not JSON", (FLAT, out, *three, "--ds-config", broken)),
        (2, "cannot be read", (FLAT, out, *three, "--ds-config", tmp_path / "none.json")),
        (
            2,
            "dcp, which does not take --stage",
            (JOB, out, *three, "--stage", 2),
        ),
        (2, "--round-robin is for stages 1 and 2", (SLICED, out, *three, "--round-robin", "on")),
        (2, "2 model-parallel ranks", (parallel, out, *three)),
        (4, "such a checkpoint to stage 3", (parallel, out, "--world-size", 4, "--stage", 3)),
        (4, "is of stage 0", (without, out, *three)),
        (4, "convert --to deepspeed --world-size 3", (universal, out, *three)),
        (4, "is safetensors, which zerotools does not reshard", (weights, out, *three)),
        (2, "is inside the checkpoint", (FLAT, FLAT / "global_step2" / "new", *three)),
    ):
        assert words in refused(status, "reshard", *arguments)
    assert not out.exists()
    assert not (FLAT / "global_step2" / "new").exists()


def test_a_configuration_of_another_type_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "ds.json"
    config.write_text(json.dumps({"zero_optimization": {"stage": 2}, "fp16": {"enabled": True}}))
    for ranks in (2, 3):
        arguments = (FLAT, tmp_path / "out", "--world-size", ranks, "--ds-config", config)
        assert "trained in bfloat16, but the configuration" in refused(2, "reshard", *arguments)
    config.write_text('{"zero_optimization": {"stage": NaN}}')
    assert "must be a whole number" in refused(2, "reshard", *arguments)


def test_a_dry_run_refuses_what_the_run_would(tmp_path: Path) -> None:
    inside = ("reshard", FLAT, FLAT / "inner", "--world-size", 3, "--dry-run")
    assert "is inside the checkpoint" in refused(2, *inside)
    (tmp_path / "something").touch()
    there = ("reshard", FLAT, tmp_path, "--world-size", 3, "--dry-run")
    assert "exists; choose another output" in refused(2, *there)


def test_the_tag_directory_may_be_the_working_directory(tmp_path: Path) -> None:
    tag, out = FLAT / "global_step2", tmp_path / "out"
    command = [sys.executable, "-m", "zerotools", "reshard", ".", str(out), "--world-size", "3"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    subprocess.run(command, cwd=tag, env=environment, check=True, capture_output=True)
    assert (out / "latest").read_text() == "global_step2"
    assert len(list((out / "global_step2").iterdir())) == 4


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("saved", [FLAT, SLICED], ids=["flat", "sliced"])
def test_a_missing_rank_is_named(saved: Path, ranks: int, tmp_path: Path) -> None:
    copy = tmp_path / "checkpoint"
    shutil.copytree(saved, copy)
    (shard,) = copy.rglob("*zero_pp_rank_1_mp_rank_00_optim_states.pt")
    shard.unlink()
    sentence = refused(3, "reshard", copy, tmp_path / "out", "--world-size", ranks)
    assert f"{shard} is missing; the run had 2 ranks" in sentence
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint"]
