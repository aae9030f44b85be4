from __future__ import annotations

import os
from collections.abc import Sequence

from tests.daemon.made_attempts import an_attempt_row
from zerotoolsd.dispatch.host_memory_use import AGE_SECONDS, HostMemoryUse
from zerotoolsd.dispatch.memory_guard.host_reading import HostMemoryReader
from zerotoolsd.queue.rows import AttemptRow
from zerotoolsd.queue.scheduling.declared_memory import HostNow
from zerotoolsd.resources.gpu_sharing.measured_use import Owner


def test_what_jobs_are_still_to_take_is_taken_off() -> None:
    now = HostNow(100, {1: 10, 2: 50})
    assert now.beside({}) == 100
    assert now.beside({1: 30, 2: 40, 3: 5}) == 100 - 20 - 5


def test_it_looks_seldom() -> None:
    clock, looks = [0.0], list[Sequence[AttemptRow]]()

    def measure(attempts: Sequence[AttemptRow]) -> dict[Owner, int]:
        looks.append(attempts)
        return {(1, 1): len(looks)}

    it = HostMemoryUse(lambda: [an_attempt_row()], lambda: 7, measure, lambda: clock[0])
    assert it.read() == it.read() == HostNow(7, {1: 1})
    clock[0] = AGE_SECONDS + 0.1  # the looks took no time
    assert it.read() == HostNow(7, {1: 2})
    assert looks == [[an_attempt_row()]] * 2


def test_this_machine_has_some() -> None:
    free = HostMemoryUse(list, HostMemoryReader().available).read().available
    assert 0 < free < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
