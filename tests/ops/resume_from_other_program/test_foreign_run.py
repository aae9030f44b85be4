"""Checkpoints of real programs, read with their optimizer state."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.golden_files import DEEPSPEED, FOREIGN, JOB
from zerotools.core.checkpoint import Key
from zerotools.core.errors import BadFile, BadRequest
from zerotools.ops.resume_from_other_program.check_job_fits import check_complete
from zerotools.ops.resume_from_other_program.foreign_run import is_foreign, read_run

CASES = sorted(path.name for path in FOREIGN.iterdir())
NORM = "model.norm.weight"
SIZES = ([16, 5], [15, 5], [16, 7])
"""Parameters with and without weight decay: also of tied weights, and of experts."""


@pytest.mark.parametrize("case", CASES)
def test_a_real_checkpoint_has_its_step_and_its_state(case: str) -> None:
    path = FOREIGN / case / "checkpoint"
    assert is_foreign(path)
    run = read_run(path)
    assert run.step == 3
    roles = {key.role for key in run.checkpoint.tensors}
    assert {"param", "exp_avg", "exp_avg_sq"} <= roles
    state = [key for key in run.checkpoint.tensors if key.role == "exp_avg"]
    named = Key(NORM, "exp_avg") in state
    numbered = case.startswith(("accelerate-ddp", "hf-trainer", "deepspeed-z0"))
    assert named is not numbered
    assert bool(run.training.unnamed) is numbered
    assert [len(group.params) for group in run.training.groups] in (
        [16, 5],
        [15, 5],
        [18, 5],
        [16, 7],
    )
    # Without ZeRO, DeepSpeed's 16-bit optimizer begins with a step on zeros.
    assert set(run.numbers.values()) == {4 if case == "deepspeed-z0-bf16" else 3}


def test_masters_of_deepspeed_without_zero_are_there_by_number() -> None:
    run = read_run(FOREIGN / "deepspeed-z0-bf16" / "checkpoint")
    masters = [k for k in run.checkpoint.tensors if k.role == "param" and k.name.startswith("opt")]
    assert len(masters) == 21
    assert {run.checkpoint.tensors[key].dtype.name for key in masters} == {"float32"}


def test_a_jobs_own_checkpoint_and_what_is_none_are_not_foreign(tmp_path: Path) -> None:
    assert not is_foreign(JOB)
    assert not is_foreign(JOB.parent)
    assert not is_foreign(tmp_path)
    assert not is_foreign(tmp_path / "none")
    assert not is_foreign(JOB / "job.json")
    assert is_foreign(FOREIGN / "accelerate-ddp" / "checkpoint" / "model.safetensors")
    (tmp_path / "__0_0.distcp").write_bytes(b"")
    assert is_foreign(tmp_path)  # what was not finished is refused as such
    with pytest.raises(BadFile, match="not finished"):
        read_run(tmp_path)


def test_weights_alone_are_refused_with_what_to_do(tmp_path: Path) -> None:
    source = FOREIGN / "hf-trainer" / "checkpoint" / "checkpoint-3"
    shutil.copy(source / "model.safetensors", tmp_path)
    with pytest.raises(BadRequest, match=r"without optimizer state: .* set model.path"):
        read_run(tmp_path)


@pytest.mark.parametrize(
    ("text", "why"), [("{", "is not JSON"), ('{"global_step": "x"}', "global_step is 'x'")]
)
def test_a_damaged_count_of_steps_is_refused(tmp_path: Path, text: str, why: str) -> None:
    place = tmp_path / "checkpoint-3"
    shutil.copytree(FOREIGN / "hf-trainer" / "checkpoint" / "checkpoint-3", place)
    (place / "trainer_state.json").write_text(text)
    with pytest.raises(BadFile, match=why):
        read_run(place)


def test_the_state_of_several_optimizers_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "saved"
    shutil.copytree(FOREIGN / "accelerate-ddp" / "checkpoint", place)
    shutil.copy(place / "optimizer.bin", place / "optimizer_1.bin")
    with pytest.raises(BadRequest, match="several optimizers"):
        read_run(place)


def test_reading_imports_no_numpy_which_a_jobs_interpreter_need_not_have_types_for() -> None:
    paths = [str(FOREIGN / case / "checkpoint") for case in CASES]
    program = (
        "import json, sys; from pathlib import Path\n"
        "from zerotools.ops.resume_from_other_program.check_job_fits import check_complete\n"
        "from zerotools.ops.resume_from_other_program.foreign_run import read_run\n"
        "[check_complete(read_run(Path(p))) for p in json.loads(sys.argv[1])]\n"
        "print([m for m in ('numpy', 'ml_dtypes', 'torch') if m in sys.modules])"
    )
    command = [sys.executable, "-c", program, json.dumps(paths)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.mark.parametrize("case", ["z2-fp32-w2-leftovers", "z3-bf16-w2-leftovers"])
def test_what_an_earlier_save_left_beside_it_is_no_matter(case: str) -> None:
    assert read_run(DEEPSPEED / case / "checkpoint").step == 2


def test_a_lost_file_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "saved"
    shutil.copytree(FOREIGN / "deepspeed-z3" / "checkpoint", place)
    next(place.rglob("*rank_1*optim_states.pt")).unlink()
    with pytest.raises(BadFile, match=r"is incomplete: .* in no file.*rank_1_.* is missing"):
        check_complete(read_run(place))


def test_a_truncated_file_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    place = tmp_path / "saved"
    shutil.copytree(FOREIGN / "fsdp2-dcp" / "checkpoint", place)
    data = next(place.rglob("*.distcp"))
    data.write_bytes(data.read_bytes()[:-2000])
    with pytest.raises(BadFile, match="truncated"):
        check_complete(read_run(place))
