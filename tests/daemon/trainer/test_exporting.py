"""The model directory that a finished job leaves, for `from_pretrained`."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import zerotools
from harness.launching import TINY_GPT2, job, run
from tests.daemon.trainer.tensors import load
from tests.golden_files import JOB
from zerotools.core.errors import ZerotoolsError
from zerotools.runs import find_job_checkpoints
from zerotoolsd.attempts.make_attempt_plan import EXPORTING
from zerotoolsd.children.export import export_evaluated

pytestmark = pytest.mark.torch


def export(output_dir: Path, dtype: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", str(EXPORTING), str(output_dir), dtype]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_what_is_evaluated_is_the_newest_that_verifies(tmp_path: Path) -> None:
    run_dir, made = tmp_path / "run", tmp_path / "evaluation"
    for step in (3, 9):
        shutil.copytree(JOB, run_dir / find_job_checkpoints.directory_name(step))
    (run_dir / find_job_checkpoints.directory_name(9) / "job.json").write_text("{}")
    assert export_evaluated(run_dir, made) == made / "model"
    told = json.loads((made / "evaluated.json").read_text())
    assert told == {"checkpoint": str(run_dir / JOB.name), "step": 3}
    assert "bfloat16" in (made / "model" / "config.json").read_text()
    export_evaluated(run_dir / JOB.name, made)  # once more, in the place of the first
    shutil.rmtree(run_dir / JOB.name)
    said = "checkpoint to evaluate; the newest cannot be used: .*step-00000009/job.json has 2"
    with pytest.raises(ZerotoolsError, match=said):
        export_evaluated(run_dir, made)
    command = [sys.executable, "-P", str(EXPORTING), "--evaluated", str(run_dir), str(made)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)


def test_a_thinned_checkpoint_is_evaluated(tmp_path: Path) -> None:
    run_dir, made = tmp_path / "run", tmp_path / "evaluation"
    shutil.copytree(JOB, run_dir / JOB.name)
    zerotools.thin(run_dir / JOB.name, yes=True)
    assert find_job_checkpoints.newest_valid(run_dir).path is None  # to resume from
    assert export_evaluated(run_dir, made) == made / "model"


def test_the_newest_checkpoint_becomes_a_model_that_transformers_loads(
    tmp_path: Path, text: Path
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    made = run(tmp_path, job(text, model={"config": TINY_GPT2}, checkpoint={"every": 2}))
    output_dir = made.run_dir / "out"
    saved = load(output_dir / find_job_checkpoints.directory_name(4))
    for dtype, wanted in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        done = export(output_dir, dtype)
        assert (done.returncode, done.stdout) == (0, f"exported to {output_dir / 'export'}\n")
        model = AutoModelForCausalLM.from_pretrained(output_dir / "export", dtype="auto")
        for name, parameter in model.named_parameters():
            assert torch.equal(parameter, saved[f"model.{name}"].to(wanted)), name
    # What somebody else put there stays.
    (output_dir / "export").rename(output_dir / "mine")
    (output_dir / "export").mkdir()
    (output_dir / "export" / "notes.txt").write_text("mine")
    done = export(output_dir, "bf16")
    assert done.returncode == 1
    assert "has no .zerotools-output.json" in done.stderr
    assert (output_dir / "export" / "notes.txt").read_text() == "mine"
    assert len(done.stderr.splitlines()) == 1
