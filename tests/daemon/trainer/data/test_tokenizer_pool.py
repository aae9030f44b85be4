"""Batches through processes: in order, with what they raise, also where a process is killed."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from zerotools.core.errors import BadFile
from zerotoolsd.trainer.data.tokenizer_pool import in_processes


class TwoWords(Exception):
    """An exception that pickle writes, and cannot read."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def make(home: int, what: str) -> Callable[[Sequence[int]], tuple[bool, list[int]]]:
    """What doubles numbers, and says whether it is at `home`."""

    def do(batch: Sequence[int]) -> tuple[bool, list[int]]:
        is_home = os.getpid() == home
        if 7 in batch and what == "killed" and not is_home:
            os.kill(os.getpid(), signal.SIGKILL)
        if 7 in batch and what == "refused":
            raise BadFile("seven")
        if 7 in batch and what == "not read by pickle":
            raise TwoWords("two", "words")
        return is_home, [2 * number for number in batch]

    return do


def results(what: str, ended: Callable[[int], None] = print) -> list[Any]:
    batches = [[n] for n in range(12)]
    return list(in_processes(batches, make, (os.getpid(), what), 2, ended=ended))


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[4]))


def test_results_come_in_order_and_from_other_processes() -> None:
    found = results("all")
    assert [numbers for _, numbers in found] == [[2 * n] for n in range(12)]
    assert found[0][0]  # the first batch, which each process is shown before it begins
    assert not any(is_home for is_home, _ in found[1:])


def test_what_a_killed_process_had_is_done_here() -> None:
    ended: list[int] = []
    found = results("killed", ended.append)
    assert [numbers for _, numbers in found] == [[2 * n] for n in range(12)]
    assert found[7][0]
    assert ended == [-signal.SIGKILL]


def test_what_a_batch_raises_comes_after_the_results_before_it() -> None:
    taken: list[list[int]] = []
    found = in_processes([[n] for n in range(12)], make, (0, "refused"), 2)
    with pytest.raises(BadFile, match="seven"):
        taken.extend(numbers for _, numbers in found)
    assert taken == [[2 * n] for n in range(7)]


def test_an_exception_that_pickle_does_not_read_is_raised_all_the_same() -> None:
    with pytest.raises(TwoWords, match="two words"):
        results("not read by pickle")


def test_where_no_process_can_be_started_all_is_done_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/gone/python")
    found = results("all")
    assert [numbers for _, numbers in found] == [[2 * n] for n in range(12)]
    assert all(is_home for is_home, _ in found)


def test_no_process_is_left() -> None:
    before = {child.pid for child in psutil.Process().children()}  # of other tests
    found = in_processes([[n] for n in range(40)], make, (0, "all"), 2)
    next(found)
    next(found)
    assert {child.pid for child in psutil.Process().children()} - before
    found.close()  # type: ignore[attr-defined]
    assert not {child.pid for child in psutil.Process().children()} - before
