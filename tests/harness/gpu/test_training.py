"""The jobs that are trained on a GPU are valid ones, and cover what the table says."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.gpu.checks import tree_of
from harness.gpu.predicted import CASES, job_of
from harness.gpu.training import TOLERANCE, runs_of
from zerotools.jobs.jobfile.memory_layout_of_job import memory_layout_of
from zerotools.jobs.jobfile.parse import job_from_dict

PLACES = {("device", "device"), ("device", "host"), ("device", "disk"), ("host", "host")}


@pytest.mark.parametrize("precision", TOLERANCE)
def test_every_stage_is_trained_with_every_offload_in_one_and_in_three_micro_batches(
    precision: str, tmp_path: Path
) -> None:
    found = set[tuple[int, tuple[str, str], bool]]()
    for _, changes in runs_of("cuda", precision, tmp_path):
        spec = job_from_dict(tree_of("cuda", precision, changes), source="job")
        layout = memory_layout_of(spec)
        place = (layout.params_tier, layout.state_tier)
        found.add((layout.stage, place, spec.train.micro_batch_size is not None))
    wanted = {
        (stage, place, in_parts)
        for stage in range(4)
        for place in PLACES
        for in_parts in (False, True)
        if place[0] == "device" or stage == 3
    }
    assert found == wanted


@pytest.mark.parametrize("name", CASES)
def test_a_job_of_eight_gpus_is_predicted(name: str) -> None:
    spec = job_from_dict(job_of("cuda", CASES[name]), source="job")
    assert (spec.device, spec.world_size) == ("cuda", 8)
