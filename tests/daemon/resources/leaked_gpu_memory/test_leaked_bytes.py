from __future__ import annotations

from dataclasses import replace

import pytest

from zerotools.sensors.fake import fake_gpu
from zerotools.sensors.snapshot import Gpu, GpuProcess
from zerotoolsd.resources.leaked_gpu_memory.leaked_bytes import (
    LeakVerdict,
    MemoryLeft,
    can_be_seen,
    memory_left,
    normal_bytes,
)

GIB = 2**30
LIMIT = GIB // 2


def gpu(used: float, *processes: tuple[int, float | None]) -> Gpu:
    listed = [GpuProcess(pid, None if size is None else int(size * GIB)) for pid, size in processes]
    return fake_gpu(0, used_gib=used, processes=listed)


def look(
    used: float,
    *processes: tuple[int, float | None],
    ours: tuple[int, ...] = (),
    baseline: int | None = None,
    given: bool = False,
) -> MemoryLeft:
    return memory_left(gpu(used, *processes), ours, LIMIT, baseline, given=given)


def test_a_gpu_that_is_as_it_was_is_free() -> None:
    assert look(0.4).verdict is LeakVerdict.FREE
    assert look(3.0, baseline=int(2.9 * GIB)).verdict is LeakVerdict.FREE  # what its driver keeps


def test_what_strangers_hold_who_came_meanwhile_is_theirs() -> None:
    assert look(30.4, (7, 20.0), (8, 10.0)).verdict is LeakVerdict.FREE


def test_what_a_process_of_the_attempt_holds_is_left() -> None:
    found = look(30.4, (7, 20.0), (8, 10.0), ours=(7,))
    assert found == MemoryLeft(LeakVerdict.LEFT, 20 * GIB, 0, (7,))
    assert look(0.6, (7, 0.3), ours=(7,)).verdict is LeakVerdict.FREE  # a GPU is given away so


def test_what_no_process_holds_is_left_where_none_is_there() -> None:
    assert look(12.3) == MemoryLeft(LeakVerdict.LEFT, 0, int(12.3 * GIB))
    assert look(3.0, baseline=GIB) == MemoryLeft(LeakVerdict.LEFT, 0, 3 * GIB)
    both = look(12.0, (7, 2.0), ours=(7,))
    assert (both.verdict, both.size) == (LeakVerdict.LEFT, 12 * GIB)


def test_where_nvml_lists_no_processes_what_is_in_use_is_nobodys() -> None:
    seen = memory_left(gpu(12.3), (), LIMIT, None, lists=False)
    assert seen.verdict is LeakVerdict.UNKNOWN
    assert memory_left(gpu(0.2), (), LIMIT, None, lists=False).verdict is LeakVerdict.FREE


def test_what_processes_may_hold_that_are_there_nobody_knows() -> None:
    """Managed memory is in use, and in nobody's list."""
    assert look(30.0, (8, 10.0)).verdict is LeakVerdict.UNKNOWN
    assert look(30.0, (8, None)).verdict is LeakVerdict.UNKNOWN


def test_a_job_that_has_the_gpu_may_hold_it_though_nvml_lists_nobody() -> None:
    assert look(30.0, given=True).verdict is LeakVerdict.UNKNOWN
    assert look(30.0, (7, 20.0), ours=(7,), given=True).verdict is LeakVerdict.LEFT
    assert look(0.4, given=True).verdict is LeakVerdict.FREE


def test_a_process_of_the_attempt_whose_memory_is_not_told_is_left() -> None:
    assert look(30.0, (7, None), ours=(7,)) == MemoryLeft(LeakVerdict.LEFT, None, 0, (7,))


def test_normal_is_a_little_more_than_before_or_what_a_gpu_may_have() -> None:
    assert normal_bytes(LIMIT, None) == normal_bytes(LIMIT, 0) == LIMIT
    assert normal_bytes(LIMIT, GIB) == GIB + 2**28


@pytest.mark.parametrize(
    "changes", [{"error": "lost"}, {"mig_instances": ()}, {"memory_used_bytes": None}]
)
def test_some_are_not_seen(changes: dict[str, object]) -> None:
    assert can_be_seen(gpu(1.0))
    assert not can_be_seen(replace(gpu(1.0), **changes))  # type: ignore[arg-type]
