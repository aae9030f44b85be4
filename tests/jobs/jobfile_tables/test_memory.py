"""What may be declared in `[memory]`."""

from __future__ import annotations

from typing import Any

import pytest

from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.jobfile_tables.spec import JobSpec

SCRIPT = {"engine": "script", "script": {"command": ["true"], "directory": "/"}}


def job(**keys: Any) -> JobSpec:
    return job_from_dict({**SCRIPT, **keys}, source="job")


def test_sizes_are_read_and_left_out_they_declare_nothing() -> None:
    declared = job(memory={"per_gpu": "10GiB", "host": 2**30}).memory
    assert (declared.per_gpu_bytes, declared.host_bytes) == (10 * 2**30, 2**30)
    assert (job().memory.per_gpu_bytes, job().memory.host_bytes) == (None, 0)


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"memory": {"per_gpu": "much"}}, 'memory.per_gpu = "much": is not a size'),
        ({"memory": {"host": 0}}, "memory.host = 0: is less than one byte"),
        (
            {"memory": {"per_gpu": "1GiB"}, "device": "cpu"},
            'memory.per_gpu = "1GiB": cannot be used in a device = "cpu" job',
        ),
        (
            {"memory": {"host": "2GiB"}, "limits": {"memory": "1GiB"}},
            'memory.host = "2GiB": must not be more than limits.memory = "1GiB"',
        ),
        ({"memory": {"per_cpu": 1}}, "per_cpu"),
        (
            {"memory": {"per_gpu": "1GiB"}, "numa": "cores"},
            'numa = "cores": jobs that share a GPU by memory.per_gpu would also share its '
            'cores, while other cores are idle; set numa = "auto"',
        ),
    ],
)
def test_what_cannot_be_is_refused(keys: dict[str, Any], why: str) -> None:
    with pytest.raises(BadRequest) as raised:
        job(**keys)
    assert why in str(raised.value)
