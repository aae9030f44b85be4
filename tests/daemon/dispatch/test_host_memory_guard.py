from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from harness.kernel.memory_limits import NoLimit, limited
from tests.daemon.dispatch.test_forecast_memory_exhaustion import GIB
from tests.daemon.made_attempts import an_attempt_row
from zerotools.sensors.cgroup_allowance import CgroupMemory
from zerotools.sensors.snapshot import Host, Pressure, Stall
from zerotoolsd.dispatch.choose_low_memory_action import EscalationStep, wanted_level
from zerotoolsd.dispatch.forecast_memory_exhaustion import MemorySample
from zerotoolsd.dispatch.host_memory_guard import (
    AGE_SECONDS,
    HostMemoryReader,
    HostMemoryUse,
    HostReading,
    group_of_units,
)
from zerotoolsd.queue.rows import AttemptRow
from zerotoolsd.queue.scheduling.memory_left_for_jobs import HostMemoryNow
from zerotoolsd.resources.check_gpu_use_of_jobs import Owner

STALLED = Pressure(memory=Stall(9.0, 8.0, full_avg10_percent=7.0))
HOST = Host(
    memory_total_bytes=64 * GIB,
    memory_available_bytes=40 * GIB,
    memory_used_bytes=24 * GIB,
    swap_total_bytes=0,
    swap_used_bytes=0,
    cpu_count=1,
    load_average=(0.0, 0.0, 0.0),
    pressure=STALLED,
)


def memory(group: CgroupMemory, in_units: bool = False) -> tuple[HostMemoryReader, list[str]]:
    asked = list[str]()

    def read_group(place: Callable[[str], str]) -> CgroupMemory:
        asked.append(place("/system.slice/zerotoolsd.service"))
        return group

    return HostMemoryReader(in_units, lambda: HOST, read_group), asked


def test_a_group_without_a_limit_has_what_the_host_has() -> None:
    it, asked = memory(CgroupMemory(reclaims=3, ooms=1))
    assert it.read() == (HostReading(64 * GIB, 40 * GIB, 7.0),)
    assert it.available() == 40 * GIB
    assert asked[0] == "/system.slice/zerotoolsd.service"


def test_a_group_with_a_limit_is_told_of_beside_the_host() -> None:
    group = CgroupMemory(5 * GIB, 8 * GIB, reclaims=3, ooms=1, stalled_percent=12.0)
    it, _ = memory(group)
    assert it.read() == (
        HostReading(64 * GIB, 40 * GIB, 7.0),
        HostReading(8 * GIB, 5 * GIB, 12.0, of_limit=True, reclaims=3, kills=1),
    )
    assert it.available() == 5 * GIB


@pytest.mark.parametrize(
    ("before", "now", "rose"), [(3, 4, True), (3, 3, False), (None, 4, False), (3, None, False)]
)
def test_what_counts_is_that_a_counter_rises(
    before: int | None, now: int | None, rose: bool
) -> None:
    earlier = HostReading(GIB, GIB, reclaims=before, kills=before)
    sample = HostReading(GIB, GIB, reclaims=now, kills=now).sample(1.0, earlier)
    assert (sample.reclaimed, sample.killed) == (rose, rose)
    assert HostReading(GIB, GIB, reclaims=4, kills=4).sample(1.0, None).reclaimed is False


@pytest.mark.parametrize(
    ("own", "jobs"),
    [
        ("/system.slice/zerotoolsd.service", "/zerotools.slice"),
        (
            "/user.slice/user-7.slice/user@7.service/app.slice/zerotoolsd.service",
            "/user.slice/user-7.slice/user@7.service/zerotools.slice",
        ),
    ],
)
def test_jobs_in_units_of_their_own_are_not_in_the_group_of_the_daemon(own: str, jobs: str) -> None:
    assert group_of_units(own) == jobs
    it, asked = memory(CgroupMemory(), in_units=True)
    it.read()
    assert asked == ["/zerotools.slice"]


def test_the_guard_wants_room_before_the_kernel_ends_a_real_leak(tmp_path: Path) -> None:
    """The limit, the memory and the counters are the kernel's; the clock is not."""
    samples, before = deque[MemorySample](), None
    try:
        with limited(512 << 20, tmp_path) as group:
            process = group.start()
            it = HostMemoryReader(read_host=lambda: HOST, read_group=lambda place: group.read())
            for look in range(100):
                assert process.take(16 << 20), "the kernel came first"
                reading = it.read()[1]
                samples.append(reading.sample(look / 2, before))
                before = reading
                if wanted_level(samples)[0] >= EscalationStep.SAVE:
                    break
            assert (process.status(), group.read().ooms) == (0, 0)
    except NoLimit as why:
        pytest.skip(str(why))


def test_what_jobs_are_still_to_take_is_taken_off() -> None:
    now = HostMemoryNow(100, {1: 10, 2: 50})
    assert now.left_after_growth({}) == 100
    assert now.left_after_growth({1: 30, 2: 40, 3: 5}) == 100 - 20 - 5


def test_it_looks_seldom() -> None:
    clock, looks = [0.0], list[Sequence[AttemptRow]]()

    def measure(attempts: Sequence[AttemptRow]) -> dict[Owner, int]:
        looks.append(attempts)
        return {(1, 1): len(looks)}

    it = HostMemoryUse(lambda: [an_attempt_row()], lambda: 7, measure, lambda: clock[0])
    assert it.read() == it.read() == HostMemoryNow(7, {1: 1})
    clock[0] = AGE_SECONDS + 0.1  # the looks took no time
    assert it.read() == HostMemoryNow(7, {1: 2})
    assert looks == [[an_attempt_row()]] * 2


def test_this_machine_has_some() -> None:
    free = HostMemoryUse(list, HostMemoryReader().available).read().available
    assert 0 < free < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
