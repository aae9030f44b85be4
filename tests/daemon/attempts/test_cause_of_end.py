"""The cause of an end, by the record that the supervisor left."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tests.daemon.made_attempts import an_attempt_row
from zerotools.sensors.xids import GpuXid
from zerotoolsd.attempts.cause_of_end import (
    AT_ONCE_SECONDS,
    LONGEST_SHOWN,
    cause_of,
    same_before,
    why_not_again,
    with_explained_cause,
    with_shutdown,
    with_xids,
)
from zerotoolsd.queue import retries_by_cause
from zerotoolsd.supervisor.attempt_plan import OUTSIDE
from zerotoolsd.supervisor.procfs import boot_id

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


def test_a_sigterm_at_the_shutdown_of_the_machine_is_its_restart() -> None:
    record = {"outcome": "crashed", "stop_reason": OUTSIDE, "cause": "saved at step 3"}
    found = with_shutdown(record, "another boot")
    assert cause_of(found) == "reboot"
    assert found["cause"] == "the machine was restarted: saved at step 3"
    for boot in (boot_id(), None):
        assert with_shutdown(record, boot) is record
    for other in ({"outcome": "finished"}, {"stop_reason": "cancel"}):
        assert with_shutdown(record | other, "another boot") == record | other


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


def traceback(error: str) -> str:
    return f'Traceback (most recent call last):\n  File "train.py", line 3, in <module>\n{error}'


SYNTAX = '  File "train.py", line 3\n    x = = 1\n        ^\nSyntaxError: invalid syntax'
TORCHRUN = (
    traceback("torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ")
    + "\ntrain.py FAILED\nRoot Cause (first observed failure):\n  exitcode  : 2 (pid: 4711)"
)


def ended(**changes: Any) -> dict[str, Any]:
    usual = {
        "outcome": "crashed",
        "cause": "rank 0 exited with 1",
        "exit_code": 1,
        "signal": None,
        "steps_done": 0,
        "checkpoint": None,
        "ran_seconds": 3.0,
        "last_lines": "",
    }
    return {**usual, **changes}


@pytest.mark.parametrize(
    ("end", "why"),
    [
        ({"exit_code": 2}, "exit status 2 means"),
        ({"exit_code": 127}, "exit status 127 means that a program was not found"),
        (
            {"exit_code": 2, "last_lines": "usage: t\nt.py: error: no such option: --x"},
            "t.py: error: no such option: --x: exit status 2",
        ),
        ({"last_lines": SYNTAX}, "SyntaxError: invalid syntax: the program itself is wrong"),
        ({"last_lines": traceback("ModuleNotFoundError: No module named 'a'")}, "ModuleNotFound"),
        ({"last_lines": "[rank0]: " + traceback("TypeError: f()")}, "TypeError: f()"),
        ({"last_lines": TORCHRUN}, "exit status 2"),
    ],
)
def test_a_mistake_is_seen_at_its_first_end(end: dict[str, Any], why: str) -> None:
    assert why in (why_not_again(ended(**end), None) or "")


@pytest.mark.parametrize(
    "end",
    [
        {},
        {"exit_code": 2, "steps_done": 5},
        {"exit_code": 2, "ran_seconds": AT_ONCE_SECONDS},
        {"exit_code": 2, "ran_seconds": None},
        {"exit_code": None, "signal": signal.SIGSEGV},
        {"outcome": "lost", "exit_code": 2},
        {"last_lines": traceback("ValueError: bad")},
        {"last_lines": traceback("ImportError: libc.so: cannot allocate memory")},
        {"last_lines": "SyntaxError: said by a log line, not by Python"},
        {"last_lines": 7},
    ],
)
def test_other_first_ends_are_repeated(end: dict[str, Any]) -> None:
    assert why_not_again(ended(**end), None) is None


@pytest.mark.parametrize(
    "end",
    [
        {"last_lines": traceback("ValueError: tensor at 0x7f01 of pid 41234")},
        {"exit_code": None, "signal": int(signal.SIGSEGV)},
        {"steps_done": 40, "ran_seconds": 9000.0, "checkpoint": {"step": 30}},
    ],
)
def test_the_same_end_twice_is_not_repeated(end: dict[str, Any]) -> None:
    first, second = ended(**end), ended(**end)
    if isinstance(text := end.get("last_lines"), str):
        second["last_lines"] = text.replace("0x7f01", "0x7f99").replace("41234", "51234")
    where = "at step 40" if end.get("steps_done") else "before its first step"
    assert f"ended with the same error {where}" in (why_not_again(second, first) or "")


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"exit_code": 3}),
        ({"steps_done": 40}, {"steps_done": 41}),
        (
            {"steps_done": 4, "checkpoint": {"step": 2}},
            {"steps_done": 4, "checkpoint": {"step": 3}},
        ),
        ({"exit_code": None, "signal": 9}, {"exit_code": None, "signal": 9}),
        ({"exit_code": 75}, {"exit_code": 75}),
        ({"ran_seconds": 9e4}, {"ran_seconds": 9e4}),
        (
            {"last_lines": traceback("OSError: [Errno 28] No space left on device")},
            {"last_lines": traceback("OSError: [Errno 28] No space left on device")},
        ),
        ({"last_lines": traceback("KeyError: 1")}, {"last_lines": traceback("KeyError: 2")}),
    ],
)
def test_different_ends_are_repeated(first: dict[str, Any], second: dict[str, Any]) -> None:
    assert why_not_again(ended(**second), ended(**first)) is None


XIDS = {"GPU-fake-0": [GpuXid(31, 5.0)], "GPU-fake-1": [GpuXid(79, 5.0), GpuXid(79, 6.0)]}


def test_the_cause_names_the_gpus_and_what_was_reported() -> None:
    record = with_xids({"cause": "rank 1 exited with 1"}, XIDS, lambda uuid: f"GPU {uuid[-1]}")
    assert record["cause"] == (
        "rank 1 exited with 1; the driver reported XID 31 of GPU 0; the driver reported XID 79 "
        "(the GPU has fallen off the bus) of GPU 1"
    )
    assert record["xids"] == {"GPU-fake-0": [31], "GPU-fake-1": [79]}


OOM_ERROR = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


def cause(
    said: str | None,
    *,
    bare: str = "rank 0 exited with 1",
    kind: str = retries_by_cause.RANK_DIED,
    secrets: tuple[str, ...] = (),
    **changes: Any,
) -> str:
    record = {"outcome": "crashed", "cause": bare, "last_error": said, **changes}
    return str(with_explained_cause(record, kind, secrets)["cause"])


def test_the_programs_error_is_the_reason_with_one_thing_to_try() -> None:
    assert cause(OOM_ERROR, kind=retries_by_cause.GPU_MEMORY) == (
        f"rank 0 exited with 1: {OOM_ERROR.rstrip('.')}; try a smaller batch per GPU with more "
        "accumulation steps, or shorter sequences"
    )
    assert cause("ModuleNotFoundError: No module named 'peft'").endswith(
        "; try to install it for the job's Python, or set python to another interpreter"
    )
    assert cause("[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(...)").endswith(
        '; try NCCL_P2P_DISABLE = "1" in [env], and NCCL_DEBUG = "INFO" to see what NCCL uses'
    )
    assert cause("ValueError: no") == "rank 0 exited with 1: ValueError: no"
    assert cause(None) == "rank 0 exited with 1"


def test_an_older_supervisor_has_kept_the_last_lines_alone() -> None:
    text = f'Traceback (most recent call last):\n  File "a.py", line 1\n{OOM_ERROR}'
    assert OOM_ERROR.rstrip(".") in cause(None, last_lines=text)


def test_no_secret_is_shown_whole_or_in_part() -> None:
    secret = "s3cret-" + "x" * 40
    at_the_edge = f"ValueError: {'y' * (LONGEST_SHOWN - 30)} {secret}"
    for said in (f"ValueError: bad key {secret}", at_the_edge, f"Error: --api-key {secret}"):
        assert "s3cret" not in cause(said, secrets=(secret,))
    assert "hunter2" not in cause("OSError: https://me:hunter2@example.org is gone")


def test_it_is_one_bounded_line_that_no_terminal_obeys() -> None:
    said = cause("Error: \x07\x9b2J\u202e" + "z" * 9000)
    assert said.isprintable()
    assert len(said) < LONGEST_SHOWN + 60


@pytest.mark.parametrize(
    "changes",
    [
        {"bare": "rank 0 exited with 1: the model's own words"},
        {"bare": "rank 0 was ended by signal 15 (SIGTERM)"},
        {"bare": "rank 0 exited with 1, after a request to stop"},
        {"outcome": "stopped"},
        {"outcome": "finished"},
    ],
)
def test_an_end_that_is_explained_already_or_came_from_outside_stays(
    changes: dict[str, Any],
) -> None:
    assert OOM_ERROR not in cause(OOM_ERROR, **changes)
    assert cause(OOM_ERROR, bare="rank 3 was ended by signal 6 (SIGABRT)").endswith(
        OOM_ERROR.rstrip(".")
    )
