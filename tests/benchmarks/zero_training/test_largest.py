"""The search for the largest model and what is predicted of it; jobs for GPUs that are not here."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from benchmarks.zero_training.cases import Case
from benchmarks.zero_training.largest import CASES, predicted, table, tree_of
from benchmarks.zero_training.setting import GIB, Setting
from benchmarks.zero_training.sizes import LADDER, Size, largest
from benchmarks.zero_training.states import jobs
from benchmarks.zero_training.steps import CASES as TIMED
from benchmarks.zero_training.steps import tree_of as timed_tree
from benchmarks.zero_training.steps import workload
from zerotools.core.training_memory_layout import DEVICE, DISK, HOST
from zerotools.jobs.jobfile.parse import job_from_dict

AMPLE = {DEVICE: 8 * GIB, HOST: 10_000 * GIB, DISK: 10_000 * GIB}


@pytest.mark.parametrize("count", [1, 2, 7, 16])
def test_the_search_finds_the_last_that_fits_from_anywhere(count: int) -> None:
    ladder = LADDER[:count]
    for last in range(-1, count):
        for start in range(count):
            asked: list[Size] = []

            def fits(size: Size, last: int = last, asked: list[Size] = asked) -> bool:
                asked.append(size)
                return ladder.index(size) <= last

            assert largest(ladder, fits, start) == (ladder[last] if last >= 0 else None)
            assert len(asked) == len(set(asked)) <= 2 * math.log2(count) + 2


def test_the_search_asks_little_where_it_starts_near() -> None:
    asked: list[Size] = []

    def fits(size: Size) -> bool:
        asked.append(size)
        return LADDER.index(size) <= 40

    assert largest(LADDER, fits, 42) == LADDER[40]
    assert len(asked) <= 4


def of(engine: str, stage: int, offload: str, **room: int) -> int:
    found = predicted(Case(engine, stage, offload), {**AMPLE, **room})
    return found.numel if found is not None else 0


def test_what_is_offloaded_makes_room() -> None:
    for engine in ("torch", "deepspeed"):
        for stage in (2, 3):
            assert 0 < of(engine, stage, "none") < of(engine, stage, "cpu")
        assert of(engine, 3, "cpu") < of(engine, 3, "params")
    assert of("torch", 0, "none", device=16 * GIB) > of("torch", 0, "none")
    # 8 GiB at 16 and at 2 bytes per parameter, the gathered block and steps of the ladder aside.
    assert of("torch", 0, "none") == pytest.approx(8 * GIB / 16, rel=0.2)
    assert of("torch", 3, "cpu") == pytest.approx(8 * GIB / 2, rel=0.2)
    # The host is what ends it: 14 bytes per parameter, 2 of them on the disk's way.
    assert of("torch", 3, "cpu", host=14 * GIB) == pytest.approx(GIB, rel=0.2)
    assert of("torch", 3, "cpu", host=14 * GIB) < of("torch", 3, "disk", host=14 * GIB)


def test_without_a_gpu_the_table_says_that_it_is_predicted(tmp_path: Path) -> None:
    lines = list(table(Setting(tmp_path)))
    assert any("Measuring needs a GPU" in line for line in lines)
    rows = [line for line in lines if line.startswith(("| torch", "| deepspeed"))]
    assert len(rows) == len(CASES)
    assert all("B |" in line for line in rows)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_job_is_one_that_the_trainer_takes(tmp_path: Path, device: str) -> None:
    setting = Setting(tmp_path, device, ranks=2, free_bytes=80 * GIB, recomputes=True)
    trees: list[dict[str, Any]] = [tree for _, tree in jobs(tmp_path, device, 2)]
    trees += [timed_tree(case, setting, workload(setting)) for case in TIMED]
    trees += [tree_of(case, Size(256, 4), device, tmp_path) for case in CASES]
    for tree in trees:
        spec = job_from_dict({**tree, "output_dir": str(tmp_path)}, source="job")
        assert spec.world_size == tree["gpus" if device == "cuda" else "ranks"]


@pytest.mark.torch
def test_sizes_are_transformers_models() -> None:
    from transformers import AutoConfig

    from zerotoolsd.trainer.model.meta_model import make_meta_model
    from zerotoolsd.trainer.model.predict_state_memory import parameters_of

    size = Size(256, 4)
    meta_model = make_meta_model(AutoConfig.for_model(**size.config(512)))
    assert Counter(parameters_of(meta_model)) == Counter(size.parameters())
    assert meta_model.parameter_count() == (size.numel, 0)
