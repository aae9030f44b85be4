"""What is offloaded is where the job says, and trains and resumes as what is not.

In fp32 bit for bit. In 16 bits masters apart from the weights take gradients that were rounded to
16 bits once more, so stages 0, 2 and 3 without offload differ from the rest in the last digits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.launching import TINY_LLAMA
from tests.daemon.trainer.meshes import check_memory
from tests.daemon.trainer.several import Runs, run_all
from tests.daemon.trainer.torch_releases import since_torch
from tests.matrices import FULL
from zerotools.jobs.jobfile_tables.spec import FP16_ON_CPU
from zerotools.runs import find_job_checkpoints

pytestmark = [pytest.mark.torch, pytest.mark.dear(50, "every stage and place, resumed")]
STAGES = (0, 1, 2, 3)
PLACES = ("none", "cpu", "disk")
MOVED = {0: "none", 1: "cpu", 2: "cpu", 3: "disk"} if FULL else {1: "cpu", 3: "disk"}
"""Stages, and the places from which their state moves on."""
AGAIN_IN_FP32 = ((0, "disk"),)
NEAR = 1e-4
SUMMATION = 2e-6
TIED = {**TINY_LLAMA, "tie_word_embeddings": True}
if not FULL:  # what a second block adds is in `test_stages`
    TIED["num_hidden_layers"] = 1


def offloaded(stage: int, place: str, directory: Path, **train: Any) -> dict[str, Any]:
    """Two steps of two accumulated batches, clipped; the first is saved."""
    offload = {"optimizer": place}
    if place == "disk":
        offload["path"] = str(directory / "spill")
    return {
        "model": {"config": TIED},
        "train": {
            "steps": 2,
            "max_grad_norm": 0.1,
            "micro_batch_size": 2,
            "accumulate": "local",
            **train,
        },
        "zero": {"stage": stage},
        "offload": offload,
        "checkpoint": {"every": 1},
    }


def on_host(**train: Any) -> dict[str, Any]:
    """The same with the parameters on the host."""
    return {**offloaded(3, "none", Path(), **train), "offload": {"params": "cpu"}}


def fp16(stage: int, place: str) -> dict[str, Any]:
    """From a scale at which gradients overflow."""
    tree = offloaded(stage, place, Path(), precision="fp16", steps=8)
    high = {"initial_scale_power": 21, "loss_scale_window": 3}
    return {**tree, "env": {FP16_ON_CPU: "1"}, "fp16": high}


def name_of(stage: int, place: str, precision: str) -> str:
    return f"{stage}-{place}-{precision}"


CHOSEN = {
    "fp32": [(0, "none"), (0, "disk"), (2, "cpu"), (3, "none")],
    "bf16": [(0, "none"), (1, "none"), (1, "cpu"), (3, "none"), (3, "disk")],
}
"""Every stage and every place in both precisions: masters, and none, in each of them. Every stage
with every place is in the full matrix."""


def layouts(precision: str) -> list[tuple[int, str]]:
    """The stages and places that are run in it."""
    return [(stage, place) for stage in STAGES for place in PLACES] if FULL else CHOSEN[precision]


def is_resumed(stage: int, place: str, precision: str) -> bool:
    """Every place with masters, and without; those that move on elsewhere."""
    return FULL or (stage, place) in (MOVED.items() if precision == "bf16" else AGAIN_IN_FP32)


def combinations(directory: Path, precision: str) -> dict[str, dict[str, Any]]:
    """Every stage with its state in every place; those of `is_resumed` and those with parameters on
    the host, in bf16, also resumed from their first step."""
    resumed = [
        name_of(stage, place, precision)
        for stage, place in layouts(precision)
        if is_resumed(stage, place, precision)
    ]
    jobs = {
        name_of(stage, place, precision): offloaded(stage, place, directory, precision=precision)
        for stage, place in layouts(precision)
    }
    for name in jobs.keys() - {*resumed}:
        del jobs[name]["checkpoint"]
    jobs[f"params-{precision}"] = on_host(precision=precision)
    if FULL or precision == "bf16":
        resumed.append(f"params-{precision}")
    else:
        del jobs["params-fp32"]["checkpoint"]
    step = Path("out", find_job_checkpoints.directory_name(1))
    return jobs | {
        f"resumed-{name}": {**jobs[name], "resume_from": str(directory / "out" / name / step)}
        for name in resumed
    }


def elsewhere(source: Path) -> dict[str, dict[str, Any]]:
    """Runs that go on from the first step of bf16 ones, at another stage, in another place."""
    step, jobs = Path("out", find_job_checkpoints.directory_name(1)), {}
    for stage, place in MOVED.items():
        other = PLACES[(PLACES.index(place) + 1) % len(PLACES)]
        path = source / "out" / name_of(stage, place, "bf16") / step
        tree = offloaded(STAGES[stage - 1], other, source, precision="bf16")
        jobs[f"moved-{stage}"] = {**tree, "resume_from": str(path)}
    path = source / "out" / "params-bf16" / step
    jobs["moved-params"] = {
        **offloaded(0, "cpu", source, precision="bf16"),
        "resume_from": str(path),
    }
    return jobs


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Runs:
    directory = tmp_path_factory.mktemp("offload") / "2"
    jobs = combinations(directory, "fp32") | combinations(directory, "bf16")
    jobs |= {f"fp16-{place}": fp16(1 if place == "none" else 2, place) for place in ("none", "cpu")}
    if FULL:
        source = directory / "out" / "fp16-cpu" / "out" / find_job_checkpoints.directory_name(1)
        jobs["resumed-fp16-cpu"] = {**jobs["fp16-cpu"], "resume_from": str(source)}
    spill = {**offloaded(3, "disk", directory)["offload"], "params": "cpu"}
    jobs["params-disk"] = {"train": {"steps": 1}, "offload": spill}
    if not FULL:  # masters resume in bf16 here, and a scale in `test_fp16`
        del jobs["fp16-none"]["checkpoint"], jobs["fp16-cpu"]["checkpoint"]
        jobs |= elsewhere(directory)  # on other numbers of ranks in `test_stages`
    return run_all(directory, text, 2, jobs, ends=False, asked=("begins",))


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory, text: Path, two: Runs) -> Runs:
    if not FULL:
        return two
    directory, jobs = tmp_path_factory.mktemp("offload") / "3", elsewhere(two.directory.parent)
    return run_all(directory, text, 3, jobs, ends=False, asked=("begins",))


def test_state_is_where_the_job_says(two: Runs) -> None:
    named = {"none": "device", "cpu": "host", "disk": "disk"}
    for precision in ("fp32", "bf16"):
        for stage, place in layouts(precision):
            report = two.report[name_of(stage, place, precision)]
            apart = place != "none" or (stage, precision) == (1, "bf16")
            assert report["start"]["places"] == {
                "weights": ["device"],
                "masters": [named[place]] if apart else [],
                "moments": [named[place]],
            }
            half = apart and precision == "bf16"
            assert report["start"]["types"] == ["bfloat16" if half else "float32"]
        places = two.report[f"params-{precision}"]["start"]["places"]
        assert places == {"weights": ["host"], "masters": [], "moments": ["host"]}


def test_each_rank_holds_what_was_predicted_to_the_byte(two: Runs) -> None:
    for name in two.report:
        check_memory(two, name, near=0.0)


def test_fp32_is_bit_for_bit_the_same_in_every_place(two: Runs) -> None:
    ended = {
        stage: {two.ended(name_of(*at, "fp32")) for at in layouts("fp32") if at[0] == stage}
        for stage in STAGES
    }
    sharded = set().union(*(ended[stage] for stage in STAGES[1:]))
    assert sharded == {two.ended("params-fp32")}
    assert len(ended[0]) == 1
    losses = pytest.approx(two.losses(name_of(0, "none", "fp32")), rel=SUMMATION)
    assert two.losses("params-fp32") == losses


def test_bf16_masters_train_alike_wherever_they_are(two: Runs) -> None:
    run = layouts("bf16")
    apart = [name_of(*at, "bf16") for at in run if at[0] and (at[1] != "none" or at[0] == 1)]
    assert len({two.ended(name) for name in apart}) == 1
    gathered = [name_of(*at, "bf16") for at in run if at in ((2, "none"), (3, "none"))]
    assert {two.ended(name) for name in gathered} == {two.ended("params-bf16")}
    wanted = pytest.approx(two.losses(gathered[0]), rel=NEAR)
    for name in (*apart, *(name_of(*at, "bf16") for at in run if at[0] == 0)):
        assert two.losses(name) == wanted


def test_fp16_skips_and_scales_alike(two: Runs) -> None:
    skips = two.of("fp16-cpu", "is_skipped")
    assert skips[:3] == [True] * 3
    assert not all(skips)
    assert skips == two.of("fp16-none", "is_skipped")
    assert two.of("fp16-cpu", "loss_scale") == two.of("fp16-none", "loss_scale")
    assert two.ended("fp16-cpu") == two.ended("fp16-none")


def test_resumed_runs_end_bit_for_bit_where_uninterrupted_ones_do(two: Runs) -> None:
    names = [name.removeprefix("resumed-") for name in two.report if name.startswith("resumed-")]
    assert len(names) == (2 * len(STAGES) * len(PLACES) + 3 if FULL else 4)
    for name in names:
        assert two.losses(f"resumed-{name}") == two.losses(name)[1:]
        assert two.ended(f"resumed-{name}") == two.ended(name)
        assert two.report[f"resumed-{name}"]["start"]["current"]
        assert two.report[name]["end"]["current"]


def test_state_arrives_whole_in_another_place_stage_and_number_of_ranks(
    two: Runs, three: Runs
) -> None:
    for stage, place in MOVED.items():
        name = name_of(stage, place, "bf16")
        moved = three.report[f"moved-{stage}"]
        assert moved["begun"] == two.report[f"resumed-{name}"]["begun"]
        assert three.losses(f"moved-{stage}") == pytest.approx(two.losses(name)[1:], rel=NEAR)
    begun = two.report["resumed-params-bf16"]["begun"]
    assert three.report["moved-params"]["begun"] == begun


# Nothing but tests and benchmarks reads the ledger.
@since_torch("2.10", "a storage in a reference cycle seems to end early")
def test_files_of_state_have_no_name_and_their_bytes_are_counted(two: Runs) -> None:
    assert list((two.directory.parent / "spill").iterdir()) == []
    for rank in two.report[name_of(3, "disk", "bf16")]["end"]["live"]:
        assert rank["disk moments"] == 2 * rank["disk masters"] > 0
        assert rank["device weights"] * 2 == rank["disk masters"]
        assert rank["host gradients"] == rank["device weights"]
