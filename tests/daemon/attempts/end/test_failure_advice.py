"""What people are told of a program that failed."""

from __future__ import annotations

from typing import Any

import pytest

from zerotoolsd.attempts.end.failure_advice import LONGEST_SHOWN, explained
from zerotoolsd.queue import retry_causes

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."


def cause(
    said: str | None,
    *,
    bare: str = "rank 0 exited with 1",
    kind: str = retry_causes.RANK_DIED,
    secrets: tuple[str, ...] = (),
    **changes: Any,
) -> str:
    record = {"outcome": "crashed", "cause": bare, "last_error": said, **changes}
    return str(explained(record, kind, secrets)["cause"])


def test_the_programs_error_is_the_reason_with_one_thing_to_try() -> None:
    assert cause(OOM, kind=retry_causes.GPU_MEMORY) == (
        f"rank 0 exited with 1: {OOM.rstrip('.')}; try a smaller batch per GPU with more "
        "accumulation steps, or shorter sequences"
    )
    assert cause("ModuleNotFoundError: No module named 'peft'").endswith(
        "; try to install it for the job's python, or name another one with python = ..."
    )
    assert cause("[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(...)").endswith(
        '; try NCCL_P2P_DISABLE = "1" in [env], and NCCL_DEBUG = "INFO" to see what NCCL uses'
    )
    assert cause("ValueError: no") == "rank 0 exited with 1: ValueError: no"
    assert cause(None) == "rank 0 exited with 1"


def test_an_older_supervisor_has_kept_the_last_lines_alone() -> None:
    text = f'Traceback (most recent call last):\n  File "a.py", line 1\n{OOM}'
    assert OOM.rstrip(".") in cause(None, last_lines=text)


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
    assert OOM not in cause(OOM, **changes)
    assert cause(OOM, bare="rank 3 was ended by signal 6 (SIGABRT)").endswith(OOM.rstrip("."))
