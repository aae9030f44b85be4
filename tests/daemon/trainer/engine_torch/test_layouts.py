"""Groups of ranks that share a copy, Adafactor over ranks, and what a rank holds when it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.launching import TINY_LLAMA
from tests.daemon.trainer.meshes import check_memory
from tests.daemon.trainer.several import Runs, run_all
from tests.matrices import FULL
from zerotools import formats
from zerotools.runs import find_job_checkpoints

pytestmark = [pytest.mark.torch, pytest.mark.dear(70, "four numbers of ranks, and torch compiles")]
STAGES = (0, 1, 2, 3)
STAGES_ON = {2: STAGES, 3: STAGES, 1: STAGES} if FULL else {2: (0, 3), 1: ()}
"""Adafactor's, by the number of ranks. At stages 1 and 2 others go on, and three ranks have what
two have: 257 rows of the vocabulary divide by neither."""
RESUMED = STAGES_ON if FULL else {2: (3,), 1: ()}
MOVED_FROM = STAGES_ON if FULL else {2: (3,)}
"""Those that go on at another number of ranks: what a rank of stage 0 saves is whole."""
TOLERANCE = 2e-6
KEPT = ("weights", "masters")
EXTREMES = ("begin-3-none", "begin-params")
if FULL:
    EXTREMES = ("begin-0-none", "begin-3-none", "begin-3-cpu", "begin-params")
ELSEWHERE = EXTREMES if FULL else EXTREMES[:1]
"""What begins on other numbers of ranks than 2, where all of it is measured."""
UNEVEN = {**TINY_LLAMA, "vocab_size": 257}
DEEP = {**TINY_LLAMA, "num_hidden_layers": 4, "vocab_size": 256, "hidden_size": 48}


def adafactor(stage: int, **changes: Any) -> dict[str, Any]:
    train = {"steps": 3, "optimizer": "adafactor", "learning_rate": 0.05}
    return {"model": {"config": UNEVEN}, "train": train, "zero": {"stage": stage}, **changes}


def grouped(stage: int, size: int | None, **changes: Any) -> dict[str, Any]:
    """Two steps of ranks in groups of `size`; the first is saved."""
    zero = {"stage": stage} if size is None else {"stage": stage, "shard_size": size}
    return {"train": {"steps": 2}, "zero": zero, "checkpoint": {"every": 1}, **changes}


def compiled(runs: Path) -> dict[str, dict[str, Any]]:
    """One block compiled, and not; and a run that goes on from it: of the full matrix alone, as the
    names in the checkpoint are compared."""
    model = {"config": {**TINY_LLAMA, "num_hidden_layers": 1}}
    source = runs / "compiled" / "out" / find_job_checkpoints.directory_name(1)
    jobs = {
        "plain": grouped(3, None, model=model),
        "compiled": grouped(3, None, model=model, train={"steps": 2, "compile": True}),
    }
    if FULL:
        jobs["from-compiled"] = grouped(3, None, model=model, resume_from=str(source))
    return jobs


def beginning(stage: int, place: str, precision: str) -> dict[str, Any]:
    """One step of a deeper model."""
    return {
        "model": {"config": DEEP},
        "train": {"steps": 1, "precision": precision},
        "zero": {"stage": stage},
        "offload": {"optimizer": place},
    }


def beginnings() -> dict[str, dict[str, Any]]:
    """Every stage, and either place."""
    jobs = {
        f"begin-{stage}-{place}": beginning(stage, place, "bf16" if place == "cpu" else "fp32")
        for stage in STAGES
        for place in ("none", "cpu")
        if FULL or (stage, place) == (3, "none")
    }
    jobs["begin-params"] = {**beginning(3, "none", "bf16"), "offload": {"params": "cpu"}}
    return jobs


def by_adafactor(runs: Path, ranks: int) -> dict[str, dict[str, Any]]:
    jobs: dict[str, dict[str, Any]] = {}
    for stage in STAGES_ON[ranks]:
        name = f"ada-{stage}"
        source = runs / name / "out" / find_job_checkpoints.directory_name(2)
        jobs[name] = adafactor(stage)
        if stage in RESUMED[ranks]:
            jobs[name]["checkpoint"] = {"every": 2}
            jobs[f"resumed-{name}"] = adafactor(stage, resume_from=str(source))
    if FULL or ranks == 2:
        jobs["ada-host"] = adafactor(STAGES_ON[ranks][-1], offload={"optimizer": "cpu"})
    return jobs


def moved(source: Runs, ranks: int) -> dict[str, dict[str, Any]]:
    """Runs that go on from Adafactor's second step on `ranks` ranks, each at another stage."""
    return {
        f"moved-{stage}": adafactor(
            STAGES[stage - 1], resume_from=str(source.checkpoint(f"ada-{stage}", 2))
        )
        for stage in MOVED_FROM.get(ranks, ())
    }


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Runs:
    directory = tmp_path_factory.mktemp("layouts") / "4"
    source = directory / "out" / "3-by-2" / "out" / find_job_checkpoints.directory_name(1)
    jobs = {
        "3": grouped(3, None),
        "3-by-2": grouped(3, 2),
        "resumed-3-by-2": grouped(3, 2, resume_from=str(source)),
    }
    if FULL:  # groups at stage 2, and on the host, train in `test_train_step`, too
        jobs["host-by-2"] = grouped(3, 2, offload={"optimizer": "cpu"})
        jobs["2-by-2"] = grouped(2, 2)
    return run_all(directory, text, 4, jobs, ends=False, asked=("begins",))


@pytest.fixture(scope="module")
def by_ranks(tmp_path_factory: pytest.TempPathFactory, text: Path, four: Runs) -> dict[int, Runs]:
    """Adafactor on 2 ranks, in the full matrix on 3, and on 1; each also goes on from the one
    before."""
    root = tmp_path_factory.mktemp("layouts")
    found: dict[int, Runs] = {}
    jobs: dict[str, dict[str, Any]] = {}
    for ranks in STAGES_ON:
        directory = root / str(ranks)
        begun = beginnings() if ranks == 2 else {name: beginnings()[name] for name in ELSEWHERE}
        jobs |= by_adafactor(directory / "out", ranks) | begun
        if ranks == 2:
            path = four.checkpoint("host-by-2" if FULL else "3-by-2", 1)
            jobs["from-groups"] = grouped(1, None, resume_from=str(path))
        if ranks == 1:  # each rank would compile the same, on the same cores
            jobs |= compiled(directory / "out")
        found[ranks] = run_all(directory, text, ranks, jobs, ends=False, asked=("begins",))
        jobs = moved(found[ranks], ranks)
    return found


def test_compiled_blocks_train_alike_and_keep_their_names(by_ranks: dict[int, Runs]) -> None:
    runs = by_ranks[1]
    assert runs.losses("compiled") == pytest.approx(runs.losses("plain"), rel=TOLERANCE)
    assert [runs.report[name]["waits"][1] for name in ("plain", "compiled")] == [600, 7200]
    kept = [formats.read(runs.checkpoint(name, 1)).tensors.keys() for name in ("compiled", "plain")]
    assert kept[0] == kept[1]
    if FULL:
        again = pytest.approx(runs.losses("plain")[1:], rel=TOLERANCE)
        assert runs.report["from-compiled"]["begun"] != runs.report["plain"]["begun"]
        assert runs.losses("from-compiled") == again


def test_groups_of_ranks_train_as_all_of_them(four: Runs) -> None:
    wanted = pytest.approx(four.losses("3"), rel=TOLERANCE)
    for name in four.report.keys() & {"3-by-2", "2-by-2", "host-by-2"}:
        assert four.losses(name) == wanted
        assert four.ended(name) == four.ended("3-by-2")
    assert four.losses("resumed-3-by-2") == four.losses("3-by-2")[1:]
    assert four.ended("resumed-3-by-2") == four.ended("3-by-2")


def test_a_rank_keeps_its_part_of_a_group(four: Runs) -> None:
    for narrow, wide in zip(
        four.report["3"]["start"]["live"], four.report["3-by-2"]["start"]["live"], strict=True
    ):
        assert wide["device weights"] == 2 * narrow["device weights"]
        assert wide["device moments"] == 2 * narrow["device moments"]


def test_a_checkpoint_of_groups_holds_each_tensor_once(four: Runs) -> None:
    sizes = {
        name: sum(file.stat().st_size for file in path.rglob("*.distcp"))
        for name in four.report.keys() & {"3", "3-by-2", "host-by-2"}
        for path in [four.checkpoint(name, 1)]
    }
    assert len(sizes) >= 2
    assert max(sizes.values()) < 1.1 * sizes["3"]
    record = find_job_checkpoints.verify_checkpoint_files(four.checkpoint("3-by-2", 1))
    assert all(name.endswith(".step") for name in record.replicated)
    formats.read(four.checkpoint("3-by-2", 1))


def test_groups_resume_as_other_stages_and_ranks(four: Runs, by_ranks: dict[int, Runs]) -> None:
    begun = four.report["resumed-3-by-2"]["begun"]
    assert by_ranks[2].report["from-groups"]["begun"] == begun
    wanted = pytest.approx(four.losses("3")[1:], rel=TOLERANCE)
    assert by_ranks[2].losses("from-groups") == wanted


@pytest.mark.parametrize("ranks", [1, 2, 3] if FULL else [2])
def test_adafactor_is_the_same_at_every_stage_and_number_of_ranks(
    by_ranks: dict[int, Runs], ranks: int
) -> None:
    runs, wanted = by_ranks[ranks], by_ranks[2].losses("ada-0")
    stages = STAGES_ON[ranks]
    assert wanted[2] < wanted[0] - 0.1
    for stage in stages:
        assert runs.losses(f"ada-{stage}") == pytest.approx(wanted, rel=TOLERANCE)
    if "ada-host" in runs.report:
        assert runs.losses("ada-host") == pytest.approx(wanted, rel=TOLERANCE)
        assert runs.ended("ada-host") == runs.ended(f"ada-{stages[-1]}")
    for stage in RESUMED[ranks]:
        assert runs.ended(f"resumed-ada-{stage}") == runs.ended(f"ada-{stage}")


@pytest.mark.parametrize(("source", "ranks"), [(2, 3), (3, 1)] if FULL else [(2, 1)])
def test_adafactor_arrives_whole_at_another_stage_and_number_of_ranks(
    by_ranks: dict[int, Runs], source: int, ranks: int
) -> None:
    before, after = by_ranks[source], by_ranks[ranks]
    for stage in MOVED_FROM[source]:
        begun = before.report[f"resumed-ada-{stage}"]["begun"]
        assert after.report[f"moved-{stage}"]["begun"] == begun
        wanted = pytest.approx(before.losses(f"ada-{stage}")[2:], rel=TOLERANCE)
        assert after.losses(f"moved-{stage}") == wanted


def test_each_rank_holds_what_was_predicted(four: Runs, by_ranks: dict[int, Runs]) -> None:
    for runs in (four, *by_ranks.values()):
        for name in runs.report:
            check_memory(runs, name, near=0.0)


def test_initial_weights_know_neither_stage_nor_place_nor_ranks(by_ranks: dict[int, Runs]) -> None:
    begun = {
        runs.report[name]["begun"]
        for ranks, runs in by_ranks.items()
        for name in (beginnings() if ranks == 2 else ELSEWHERE)
    }
    assert len(begun) == 1


@pytest.mark.parametrize("ranks", [2, 3] if FULL else [2])
def test_no_rank_ever_holds_the_whole_model(by_ranks: dict[int, Runs], ranks: int) -> None:
    from transformers import LlamaConfig

    from zerotoolsd.trainer.model.meta_model import make_meta_model

    model = make_meta_model(LlamaConfig(**DEEP)).model
    whole = 4 * sum(parameter.numel() for parameter in model.parameters())
    block = 4 * sum(parameter.numel() for parameter in model.model.layers[0].parameters())
    table = model.lm_head.weight.nbytes
    begun = EXTREMES if ranks == 2 else ELSEWHERE
    for name in (name for name in begun if name != "begin-0-none"):
        for peak in by_ranks[ranks].report[name]["start"]["peak"]:
            assert 0 < peak["host start"] <= max(block, table)
            kept = sum(size for key, size in peak.items() if key.split()[1] in KEPT)
            # The masters of rows, and their 16-bit copy; a matrix of few rows is cut unevenly.
            assert kept <= 1.6 * whole / ranks
    if FULL:
        for peak in by_ranks[ranks].report["begin-0-none"]["start"]["peak"]:
            assert peak["device weights"] == whole
