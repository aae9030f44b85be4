from __future__ import annotations

import threading

import pytest

from zerotools.core.checkpoint import Key
from zerotools.core.dtypes import FLOAT32
from zerotools.core.flat_ranges import Range
from zerotools.io.numeric.gather_elements import Scratch
from zerotools.ops.execution.plan_copies import RangeCopy
from zerotools.ops.execution.tile_workers import MIN_TILE_BYTES, MemoryBudget, TileWorkers
from zerotools.ops.execution.tiles import Tile

WORKERS = 3
BUDGET = MemoryBudget(MIN_TILE_BYTES * 3 * WORKERS, WORKERS)
COUNT = 50


def copies(count: int = COUNT) -> list[RangeCopy]:
    """One flat vector of `count` tiles."""
    whole = Range(0, count * MIN_TILE_BYTES // 4, "f", 0)
    return [RangeCopy(Key("w", "param"), whole, FLOAT32, FLOAT32, (whole,))]


def offset(tile: Tile, _: Scratch) -> int:
    return tile.offset


def test_every_tile_is_worked_on_once() -> None:
    with TileWorkers(BUDGET) as workers:
        found = sorted(workers.each(copies(), offset))
    assert found == [number * MIN_TILE_BYTES for number in range(COUNT)]


def test_each_thread_has_buffers_of_its_own() -> None:
    together = threading.Barrier(WORKERS)

    def own(_: Tile, scratch: Scratch) -> int:
        together.wait(timeout=20)
        return id(scratch)

    with TileWorkers(BUDGET) as workers:
        assert len(set(workers.each(copies(WORKERS), own))) == WORKERS


def test_a_failing_tile_stops_the_others() -> None:
    begun = []

    def fail(tile: Tile, _: Scratch) -> None:
        begun.append(tile.offset)
        raise ValueError(f"tile {len(begun)}")

    with TileWorkers(BUDGET) as workers, pytest.raises(ValueError, match="tile"):
        list(workers.each(copies(), fail))
    assert len(begun) <= WORKERS


def test_what_nobody_waits_for_is_not_worked_on() -> None:
    begun = []

    def count(tile: Tile, _: Scratch) -> int:
        begun.append(tile.offset)
        return tile.offset

    with TileWorkers(BUDGET) as workers:
        results = workers.each(copies(100_000), count)
        next(iter(results))
        del results
        assert list(workers.each(copies(1), offset)) == [0]
    assert len(begun) < 100_000


def test_a_fault_of_the_plan_is_raised() -> None:
    def broken() -> object:
        yield from copies(2)
        raise ValueError("a hole")

    with TileWorkers(BUDGET) as workers, pytest.raises(ValueError, match="a hole"):
        list(workers.each(broken(), offset))  # type: ignore[arg-type]


def test_work_aside_is_done_in_order() -> None:
    done: list[int] = []
    with TileWorkers(BUDGET) as workers:
        for number in range(5):
            last = workers.aside(lambda number=number: done.append(number))  # type: ignore[misc]
        last.result(timeout=20)
    assert done == list(range(5))
