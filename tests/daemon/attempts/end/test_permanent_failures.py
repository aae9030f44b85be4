"""Which crashes are worth another attempt."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from zerotoolsd.attempts.end.permanent_failures import AT_ONCE_SECONDS, why_not_again


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
