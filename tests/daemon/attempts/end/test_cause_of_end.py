"""The cause of an end, by the record that the supervisor left."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tests.daemon.made_attempts import an_attempt_row
from zerotools.sensors.xids import GpuXid
from zerotoolsd.attempts.end.cause_of_end import cause_of, same_before

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"


@pytest.mark.parametrize(
    ("record", "cause"),
    [
        ({"outcome": "finished"}, None),
        ({"outcome": "stopped"}, None),
        ({"outcome": "bad_job"}, "user_error"),
        ({"outcome": "bad_checkpoint"}, "bad_checkpoint"),
        ({"outcome": "not_ready"}, "machine"),
        ({"outcome": "killed"}, "killed"),
        ({"outcome": "lost", "rebooted": True}, "reboot"),
        ({"outcome": "lost"}, "lost"),
        ({"exit_code": 1}, "rank_died"),
        ({"exit_code": 2, "ran_seconds": 1.0}, "user_error"),
        ({"signal": int(signal.SIGSEGV)}, "rank_died"),
        ({"signal": int(signal.SIGKILL)}, "killed"),
        ({"signal": int(signal.SIGKILL), "out_of_host_memory": True}, "host_memory"),
        ({"signal": int(signal.SIGKILL), "stalled": True}, "hang"),
        ({"exit_code": 1, "cause": f"rank 0 exited with 1: {OOM}"}, "gpu_memory"),
        ({"outcome": ["odd"], "exit_code": 1}, "rank_died"),
    ],
)
def test_the_cause_of_each_end(record: dict[str, Any], cause: str | None) -> None:
    assert cause_of({"outcome": "crashed", **record}) == cause


def test_what_has_no_gpu_ran_out_of_no_gpu_memory() -> None:
    record = {
        "outcome": "crashed",
        "exit_code": 1,
        "last_lines": "java.lang.OutOfMemoryError: Java heap space",
    }
    assert cause_of(record, on_gpus=False) == "rank_died"


@pytest.mark.parametrize(
    ("codes", "record", "cause"),
    [
        ((79,), {"stalled": True}, "gpu_fault"),
        ((31, 94), {"exit_code": 1}, "gpu_fault"),
        ((79,), {"outcome": "lost"}, "gpu_fault"),
        ((31,), {"exit_code": 1}, "gpu_program"),
        ((79,), {"outcome": "finished"}, None),
        ((31,), {"exit_code": 2, "ran_seconds": 1.0}, "user_error"),
    ],
)
def test_what_the_driver_reported_counts(
    codes: tuple[int, ...], record: dict[str, Any], cause: str | None
) -> None:
    xids = [GpuXid(code, 1.0) for code in codes]
    assert cause_of({"outcome": "crashed", **record}, xids) == cause


@pytest.mark.parametrize(
    ("ends", "count"),
    [
        ([], 0),
        ([("hang", 0)], 1),
        ([("hang", 0), ("rank_died", 0), ("hang", 0)], 2),
        ([("hang", 0), ("hang", 4), ("hang", 4)], 2),
        ([("hang", 0), ("rank_died", 4)], 0),
    ],
)
def test_ends_by_one_cause_are_counted_since_the_job_got_on(
    ends: list[tuple[str, int]], count: int
) -> None:
    rows = [
        an_attempt_row(number, cause=cause, result={"checkpoint": {"step": step}})
        for number, (cause, step) in enumerate(ends, 1)
    ]
    assert same_before("hang", rows) == count
