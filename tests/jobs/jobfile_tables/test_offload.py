"""Offload and sharding that cannot be are refused, naming the keys that disagree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.launching import job
from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile.parse import job_from_dict, job_to_dict


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"offload": {"params": "cpu"}, "zero": {"stage": 2}}, "zero.stage is 2; set it to 3"),
        ({"offload": {"optimizer": "disk"}}, "set offload.path"),
        ({"offload": {"path": "/spill"}}, 'cannot be combined with offload.optimizer = "none"'),
        ({"offload": {"pin_memory": False}}, "the job offloads no data"),
        ({"offload": {"optimizer": "nvme"}}, 'must be one of "none", "cpu", "disk"'),
        ({"offload": {"optimizer": "disk", "path": "spill"}}, "must be an absolute path"),
        ({"zero": {"shard_size": 3}}, "zero.shard_size = 3: must divide the 4 ranks"),
        ({"zero": {"stage": 1, "shard_size": 2}}, "needs zero.stage 2 or 3"),
    ],
)
def test_a_refusal_names_the_keys(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(BadRequest) as refusal:
        job_from_dict(job(Path("/text"), ranks=4, **changes), source="job")
    assert sentence in str(refusal.value)


def test_what_can_be_is_taken() -> None:
    tree = job(
        Path("/text"),
        ranks=4,
        zero={"stage": 2, "shard_size": 2},
        offload={"optimizer": "disk", "path": "/spill", "pin_memory": False},
    )
    spec = job_from_dict(tree, source="job")
    assert (spec.zero.shard_size, spec.offload.path) == (2, "/spill")
    assert job_from_dict(job_to_dict(spec), source="job") == spec
