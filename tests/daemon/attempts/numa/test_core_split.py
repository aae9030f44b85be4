"""Whole cores for each, and all of them given away once."""

from __future__ import annotations

import pytest

from tests.sensors.numa_machines import a_topology, dual_socket
from zerotools.sensors.cpu_lists import cpu_list, numbers_in
from zerotoolsd.attempts.numa.core_split import core_share

LEFT = numbers_in("0-15,32-47")


def shares(cpus: frozenset[int], cores: tuple[frozenset[int], ...], sharers: int) -> list[str]:
    return [cpu_list(core_share(cpus, cores, place, sharers)) for place in range(sharers)]


def test_hardware_threads_of_a_core_stay_together_and_neighbours_too() -> None:
    assert shares(LEFT, dual_socket().cores, 4) == [
        "0-3,32-35",
        "4-7,36-39",
        "8-11,40-43",
        "12-15,44-47",
    ]


@pytest.mark.parametrize("sharers", [1, 2, 3, 5, 7, 16])
def test_every_core_is_given_to_one(sharers: int) -> None:
    cores = dual_socket().cores
    found = [core_share(LEFT, cores, place, sharers) for place in range(sharers)]
    assert sorted(cpu for share in found for cpu in share) == sorted(LEFT)
    sizes = {len(share) for share in found}
    assert max(sizes) - min(sizes) <= 2  # a core with two threads
    assert all((core <= share) or core.isdisjoint(share) for share in found for core in cores)


def test_cores_of_different_kinds_are_each_one() -> None:
    """A processor whose fast cores have two threads, and whose others have one."""
    cores = tuple(map(frozenset, ([0, 1], [2, 3], [4], [5])))
    assert shares(frozenset(range(6)), cores, 2) == ["0-3", "4-5"]


def test_a_core_of_which_one_thread_may_be_used_counts_by_that() -> None:
    assert shares(numbers_in("0-3,32"), dual_socket().cores, 2) == ["0-1,32", "2-3"]


def test_fewer_cores_than_sharers_are_everybodys() -> None:
    assert shares(numbers_in("0-1"), a_topology("0-1").cores, 3) == ["0-1"] * 3


def test_a_thousand_processors() -> None:
    topology = a_topology("0-511", "512-1023", threads=2)
    assert shares(numbers_in("512-1023"), topology.cores, 2) == [
        "512-639,768-895",
        "640-767,896-1023",
    ]
