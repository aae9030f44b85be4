"""Threads and the standard output of `zerotools delta`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from zerotools.core.errors import BadRequest
from zerotools.ops.delta.make_delta import block_workers, written_file
from zerotools.ops.execution.tile_workers import MemoryBudget


def test_blocks_of_all_threads_fit_into_the_memory() -> None:
    threads = [block_workers(MemoryBudget(n << 20, 8)) for n in (16, 100, 1024)]
    assert threads == [1, 2, 8]


def test_a_closed_standard_output_takes_no_delta(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "__stdout__", None)
    with (
        pytest.raises(BadRequest, match="standard output is closed"),
        written_file(Path("-"), overwrite=False),
    ):
        raise AssertionError("it is refused before")
