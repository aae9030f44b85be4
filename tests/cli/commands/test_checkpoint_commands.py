"""The checkpoint commands as processes: output, exit status, and one sentence for bad input."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.cli.command_process import zerotools
from tests.golden_files import DEEPSPEED, JOB, TORCH
from tests.ops.exports import model, noise, weights_of
from zerotools import formats
from zerotools.cli.commands.inspect import describe
from zerotools.ops.inspection.inspect import inspect


def refused(status: int, *arguments: object) -> str:
    """The one sentence of a command that must fail with `status`, its hint at the end."""
    done = zerotools(*arguments)
    assert done.returncode == status, done
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    (sentence,) = [line for line in lines if line.startswith("error: ")]
    return "; ".join([sentence, *(line[6:] for line in lines if line.startswith("hint: "))])


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    path = tmp_path / "step-00000003"
    shutil.copytree(JOB, path)
    return path


def test_inspect_prints_what_is_there() -> None:
    done = zerotools("inspect", JOB, "--tensors")
    assert done.returncode == 0
    assert "ZeRO stage  3" in done.stdout
    assert "model.embed_tokens.weight" in done.stdout
    assert "tied: lm_head.weight = model.embed_tokens.weight" in done.stdout
    assert done.stdout.count("__1_0.distcp") == 1
    lines = done.stdout.splitlines()
    assert max(len(line) for line in lines if not line.startswith("next: ")) <= 100


def test_inspect_is_short_and_verbose_has_the_tables() -> None:
    short = zerotools("inspect", JOB).stdout.splitlines()
    assert short[0] == "COMPLETE according to its metadata; zerotools verify reads the data"
    assert "tied        lm_head.weight = model.embed_tokens.weight" in short
    assert any(line.startswith("groups      2: lr ") for line in short)
    assert len(short) <= 18
    verbose = zerotools("inspect", JOB, "-v").stdout.splitlines()
    for header in ("ROLE ", "GROUP ", "FILE "):
        assert sum(line.startswith(header) for line in verbose) == 1
        assert not any(line.startswith(header) for line in short)


def test_inspect_as_json() -> None:
    described = json.loads(zerotools("inspect", JOB, "--json", "--tensors").stdout)
    assert described["step"] == 3
    assert described["tensors"][0]["chunks"][0]["file"].endswith(".distcp")


def test_inspect_of_a_damaged_checkpoint_is_status_1(damaged: Path) -> None:
    (damaged / "dcp/__1_0.distcp").unlink()
    done = zerotools("inspect", damaged)
    assert done.returncode == 1
    first, *rest = done.stdout.splitlines()
    assert re.fullmatch(r"INCOMPLETE: 1 of \d+ files missing, \d+ tensors affected", first)
    problems = [line for line in rest if line.startswith("problem: ")]
    assert len(problems) == 1
    assert "__1_0.distcp is missing" in problems[0]
    [affected] = [line for line in rest if line.startswith("affected: ")]
    assert "model.embed_tokens.weight" in affected
    assert affected.endswith(" more")


def test_consolidate_and_reshard(tmp_path: Path) -> None:
    done = zerotools("consolidate", JOB, tmp_path / "out", "--dtype", "bf16")
    assert done.returncode == 0, done.stderr
    assert "11 tensors" in done.stdout
    done = zerotools("reshard", JOB, tmp_path / "three", "--world-size", 3, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["schema"] == "zerotools.reshard/1"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "three"]


def test_verified_and_resumed_outputs_say_so(tmp_path: Path) -> None:
    done = zerotools("consolidate", JOB, tmp_path / "out", "--verify", "--resume")
    assert "; verified against the source" in done.stdout, done
    done = zerotools("reshard", JOB, tmp_path / "three", "--world-size", 3, "--verify", "--json")
    assert json.loads(done.stdout)["verified"] is True
    assert json.loads(done.stdout)["resumed"] == []


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    done = zerotools("consolidate", JOB, tmp_path / "out", "--dry-run")
    assert done.returncode == 0
    assert "would write" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_bad_requests(tmp_path: Path) -> None:
    missing = tmp_path / "nothing"
    assert f"{missing} does not exist" in refused(2, "inspect", missing)
    assert "exists" in refused(2, "consolidate", JOB, Path(__file__).parent)
    assert "--world-size is 0" in refused(2, "reshard", JOB, missing, "--world-size", 0)
    assert "not a size" in refused(2, "consolidate", JOB, missing, "--max-memory", "lots")
    assert "at least" in refused(2, "consolidate", JOB, missing, "--max-memory", "1kB")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    assert "is not a checkpoint" in refused(3, "inspect", tmp_path)


def test_half_written_and_corrupt_checkpoints(damaged: Path, tmp_path: Path) -> None:
    metadata = damaged / "dcp/.metadata"
    whole = metadata.read_bytes()
    metadata.write_bytes(whole[: len(whole) // 2])
    assert "/.metadata" in refused(3, "consolidate", damaged, tmp_path / "out")
    metadata.write_bytes(b"\x80\x04not a pickle")
    assert "/.metadata" in refused(3, "inspect", damaged)
    metadata.unlink()
    assert ".metadata" in refused(3, "inspect", damaged / "dcp")
    assert not (tmp_path / "out").exists()


def test_a_truncated_shard_leaves_nothing(damaged: Path, tmp_path: Path) -> None:
    shard = damaged / "dcp/__0_0.distcp"
    shard.write_bytes(shard.read_bytes()[:5_000])
    assert "__0_0.distcp" in refused(3, "consolidate", damaged, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000003"]


def test_what_is_not_finite_is_counted_and_kept(tmp_path: Path) -> None:
    values = noise(40)
    values[:6] = [np.nan, np.nan, np.inf, -np.inf, -np.inf, -np.nan]
    source = model(tmp_path / "in", {"w": values, "fine": noise(3)})
    for dtype in ("bf16", "fp32", "fp16"):
        done = zerotools("consolidate", source, tmp_path / dtype, "--dtype", dtype)
        assert "note: w holds 3 NaN and 3 infinite values\n" in done.stderr, done
        assert "fine" not in done.stderr
    done = zerotools("consolidate", source, tmp_path / "json", "--dtype", "bf16", "--json")
    assert json.loads(done.stdout)["nonfinite"] == [
        {"name": "w", "role": "param", "nans": 3, "infinities": 3}
    ]
    assert np.isnan(weights_of(tmp_path / "bf16")["w"].astype(np.float32)).sum() == 3


def test_overflow_fails_unless_it_is_allowed(tmp_path: Path) -> None:
    source = model(tmp_path / "in", {"w": noise(40) * 1e6})
    said = refused(2, "consolidate", source, tmp_path / "out", "--dtype", "fp16")
    assert "w has 39 such values, the largest " in said
    assert not (tmp_path / "out").exists()
    allowed = ("--dtype", "fp16", "--allow-overflow", "--json")
    done = zerotools("consolidate", source, tmp_path / "out", *allowed)
    (lost,) = json.loads(done.stdout)["overflowed"]
    assert (lost["name"], lost["values"]) == ("w", 39)


def test_a_file_whose_size_disagrees_with_the_manifest(damaged: Path, tmp_path: Path) -> None:
    with (damaged / "rank_00000.json").open("a") as file:
        file.write(" ")
    done = zerotools("consolidate", damaged, tmp_path / "out")
    assert done.returncode == 0
    assert "warning: " in done.stderr
    assert "rank_00000.json" in done.stderr
    with (damaged / "config.json").open("a") as file:
        file.write(" ")
    assert "config.json has" in refused(3, "consolidate", damaged, tmp_path / "second")
    assert "config.json has" in refused(3, "consolidate", damaged, tmp_path / "x", "--dry-run")
    with (damaged / "dcp/__1_0.distcp").open("ab") as file:
        file.write(b"more")
    (damaged / "config.json").unlink()
    assert "__1_0.distcp has" in refused(3, "consolidate", damaged, tmp_path / "second")
    assert not (tmp_path / "second").exists()


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    done = zerotools("inspect", tmp_path / "nothing", "--debug")
    assert done.returncode == 2
    assert "Traceback" in done.stderr


@pytest.mark.parametrize(
    ("source", "file"),
    [
        (DEEPSPEED / "z3-bf16-w4", "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"),
        (DEEPSPEED / "z2-bf16-w2", "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"),
        (TORCH / "fsdp2-dcp-w3", "pytorch_model_fsdp_0/__0_0.distcp"),
    ],
    ids=["zero-3", "zero-2", "dcp"],
)
def test_a_truncated_shard_is_told_like_a_missing_one(
    source: Path, file: str, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint"
    shutil.copytree(source / "checkpoint", path)
    [cut] = path.rglob(file)
    with cut.open("r+b") as stream:
        stream.truncate(3000)
    inspection = inspect(formats.read_any(path))
    lines = describe(inspection, tensors=False)
    count = len(inspection.incomplete)
    assert count > 1
    assert re.fullmatch(
        rf"INCOMPLETE: 1 of \d+ files missing or damaged, {count} tensors affected", lines[0]
    )
    assert any(line.startswith("problem: ") and file in line for line in lines)
    assert file in refused(3, "consolidate", path, tmp_path / "out")


def test_a_learning_rate_has_six_digits() -> None:
    inspection = inspect(formats.read_any(DEEPSPEED / "z2-bf16-w2" / "checkpoint"))
    (group, *_) = inspection.run.training.groups
    group = replace(group, options={**group.options, "lr": 0.000259556240854677})
    training = replace(inspection.run.training, groups=(group,))
    run = replace(inspection.run, training=training, group_elements=(1,))
    lines = describe(replace(inspection, run=run), tensors=False, verbose=True)
    assert any("lr 0.000259556, weight_decay" in line for line in lines)


def test_files_left_over_from_another_run_are_not_called_damage() -> None:
    lines = describe(
        inspect(formats.read_any(DEEPSPEED / "z2-fp32-w2-leftovers" / "checkpoint")), tensors=False
    )
    assert lines[0] == "PROBLEMS: 2, listed below"
    assert sum("belongs to a run of more than 2 ranks" in line for line in lines) == 2
