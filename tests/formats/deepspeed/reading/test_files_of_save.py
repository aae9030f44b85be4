"""A tag that several saves were written to: what belongs together follows from the shards."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.formats.deepspeed.damaging import ALL, copied, problems_of, refusals
from tests.formats.deepspeed.describing import contents
from tests.formats.deepspeed.reading.test_versions import rewrite
from tests.golden_files import DEEPSPEED
from zerotools.core.errors import BadFile
from zerotools.formats import read
from zerotools.ops.inspection.completeness import Completeness, check_completeness

Z0, Z2, Z3 = "z0-bf16-w2", "z2-bf16-w2", "z3-bf16-w2"


def test_a_truncated_model_file_that_no_export_needs_is_named(tmp_path: Path) -> None:
    """No weight is frozen, so no output needs it; DeepSpeed, which resumes with it, does."""
    tag = copied("z3-fp32-w2", tmp_path)
    path = tag / "zero_pp_rank_1_mp_rank_00_model_states.pt"
    path.write_bytes(path.read_bytes()[:-100])
    assert any(said.startswith(str(path)) for said in problems_of(tag))
    assert refusals(tag, tmp_path / "out") == {}
    assert check_completeness(tag).problem is not None


def save_over(tag: Path, case: str) -> None:
    """Write the files of another case into a tag, as a second save does."""
    (source,) = (path for path in (DEEPSPEED / case / "checkpoint").iterdir() if path.is_dir())
    shutil.copytree(source, tag, dirs_exist_ok=True)


def golden(case: str) -> dict[str, tuple[str, bytes]]:
    return contents(read(DEEPSPEED / case / "checkpoint"))


@pytest.mark.parametrize(
    ("first", "second", "stale"),
    [
        (Z2, Z3, {"mp_rank_00_model_states.pt"}),
        (Z3, Z2, {f"zero_pp_rank_{r}_mp_rank_00_model_states.pt" for r in (0, 1)}),
        (Z2, Z0, {f"bf16_zero_pp_rank_{r}_mp_rank_00_optim_states.pt" for r in (0, 1)}),
        (Z0, Z2, set()),
        (
            "z2-fp32-w2",
            Z2,
            {f"zero_pp_rank_{r}_mp_rank_00_optim_states.pt" for r in (0, 1)},
        ),
        (
            Z2,
            "z2-fp32-w2",
            {f"bf16_zero_pp_rank_{r}_mp_rank_00_optim_states.pt" for r in (0, 1)},
        ),
        ("z1-bf16-w4", Z2, {f"bf16_zero_pp_rank_{r}_mp_rank_00_optim_states.pt" for r in (2, 3)}),
        (
            "z3-bf16-w4",
            Z2,
            {f"bf16_zero_pp_rank_{r}_mp_rank_00_optim_states.pt" for r in (2, 3)}
            | {f"zero_pp_rank_{r}_mp_rank_00_model_states.pt" for r in range(4)},
        ),
        (
            "tensor-parallel-z2-fp32-w2",
            "z2-fp32-w2",
            {
                "mp_rank_01_model_states.pt",
                "zero_pp_rank_0_mp_rank_01_optim_states.pt",
            },
        ),
        (
            "pipeline-z0-bf16-w2",
            Z2,
            {f"layer_{n:02d}-model_states.pt" for n in range(5)}
            | {"mp_rank_01_model_states.pt", "bf16_zero_pp_rank_0_mp_rank_01_optim_states.pt"},
        ),
        (
            "experts-z2-bf16-w2",
            Z2,
            {f"layer_0_expert_{n}_mp_rank_00_model_states.pt" for n in range(4)},
        ),
    ],
)
def test_the_last_save_is_read_and_the_rest_is_left_over(
    first: str, second: str, stale: set[str], tmp_path: Path
) -> None:
    tag = copied(first, tmp_path)
    save_over(tag, second)
    checkpoint = read(tag)
    assert contents(checkpoint) == golden(second)
    left = {problem.file for problem in checkpoint.problems if "belongs to" in problem.message}
    assert left == stale
    assert not any(problem.prevents_output for problem in checkpoint.problems)


def test_the_step_is_that_of_the_shards(tmp_path: Path) -> None:
    """Stage 2 saved to the tag at step 3, then stage 3 at step 2."""
    tag = copied(Z2, tmp_path)
    rewrite(tag / "mp_rank_00_model_states.pt", lambda tree: tree.update(global_steps=3))
    save_over(tag, Z3)
    assert read(tag).origin.step == 2


def test_two_whole_saves_are_refused(tmp_path: Path) -> None:
    """The files of a run without ZeRO and of one of stage 3 have no name in common."""
    tag = copied(Z0, tmp_path)
    save_over(tag, Z3)
    with pytest.raises(BadFile, match=r"holds 2 saves.*stage 3 at step 2.*stage 0 at step 2"):
        read(tag)
    assert refusals(tag, tmp_path / "out").keys() == ALL


def test_a_model_file_of_another_save_does_not_stand_in(tmp_path: Path) -> None:
    tag = copied(Z2, tmp_path)
    save_over(tag, Z3)
    for path in tag.glob("zero_pp_rank_*_model_states.pt"):
        path.unlink()
    (said,) = problems_of(tag)
    assert "zero_pp_rank_0_mp_rank_00_model_states.pt is missing" in said
    assert refusals(tag, tmp_path / "out").keys() == ALL


@pytest.mark.parametrize("case", [Z2, Z3, "z2-fp32-w2"])
def test_masters_that_are_all_lost_are_not_replaced(case: str, tmp_path: Path) -> None:
    tag = copied(case, tmp_path)
    for path in tag.glob("*optim_states.pt"):
        path.unlink()
    assert any("files of all other ranks are missing" in said for said in problems_of(tag))
    assert refusals(tag, tmp_path / "out").keys() == ALL


def test_the_first_model_file_of_stage_3_is_needed(tmp_path: Path) -> None:
    """It alone says which weights are tied."""
    tag = copied("z3-fp32-w2", tmp_path)
    (tag / "zero_pp_rank_0_mp_rank_00_model_states.pt").unlink()
    assert refusals(tag, tmp_path / "out").keys() == ALL


def change(tag: Path, pattern: str, **values: Any) -> None:
    for path in tag.glob(pattern):
        rewrite(path, lambda tree: tree.update(values))


def test_a_model_file_of_another_step(tmp_path: Path) -> None:
    tag = copied(Z3, tmp_path)
    change(tag, "*model_states.pt", global_steps=7)
    assert any("records 7 updates, but the optimizer has made 2" in s for s in problems_of(tag))
    assert refusals(tag, tmp_path / "out").keys() == ALL


@pytest.mark.parametrize("case", [Z2, Z3])
def test_a_run_that_began_before_0_14_counts_one_step_more(case: str, tmp_path: Path) -> None:
    tag = copied(case, tmp_path)
    change(tag, "*model_states.pt", global_steps=1)
    assert problems_of(tag) == []
    assert any("counted 2 steps, but the run only 1." in each for each in read(tag).origin.notes)
    assert refusals(tag, tmp_path / "out") == {}


def test_the_schedule_tells_a_model_file_of_the_save_before(tmp_path: Path) -> None:
    (tag,) = copied("hf-trainer-z3-bf16-w2", tmp_path).glob("global_step*")
    change(tag, "*model_states.pt", global_steps=1)
    assert problems_of(tag) == []
    change(tag, "*model_states.pt", lr_scheduler={"last_epoch": 1, "_last_lr": [0.005]})
    assert any("learning rates [0.005], but the" in each for each in problems_of(tag))
    assert refusals(tag, tmp_path / "out").keys() == ALL
    for rates in ((0.005,), [0.005, 0.005], {"lr": 0.005}, 0.005):  # they cannot be compared
        change(tag, "*model_states.pt", lr_scheduler={"last_epoch": 1, "_last_lr": rates})
        assert problems_of(tag) == []


def test_skipped_steps_are_not_updates(tmp_path: Path) -> None:
    tag = copied("z2-fp16-w2", tmp_path)  # five steps, two of them skipped, the optimizer at 3
    assert problems_of(tag) == []
    change(tag, "mp_rank*", skipped_steps=4)
    assert any("records 1 updates" in s for s in problems_of(tag))


def test_an_optimizer_that_began_anew_is_told_and_read(tmp_path: Path) -> None:
    """`load_optimizer_states=False` leaves it behind the run; masters and weights agree."""
    tag = copied(Z2, tmp_path)
    change(tag, "mp_rank*", global_steps=9)
    assert any("it records 9 updates" in said for said in problems_of(tag))
    assert refusals(tag, tmp_path / "out") == {}


def test_what_is_left_over_takes_nothing_away(tmp_path: Path) -> None:
    """A run that saves to one tag again and again is resumed from it; not from a mixed one."""
    tag = copied(Z2, tmp_path)
    save_over(tag, Z3)
    assert check_completeness(tag) == Completeness(True, 2)
    (tag / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    assert "is missing" in str(check_completeness(tag).problem)


def test_an_interrupted_save_is_not_whole(tmp_path: Path) -> None:
    tag = copied(Z2, tmp_path)
    change(tag, "mp_rank*", global_steps=9)
    assert "it records 9 updates" in str(check_completeness(tag).problem)
