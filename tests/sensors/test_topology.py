"""Memory nodes, as the kernel shows them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.sensors.numa_machines import GIB, a_topology, dual_socket, show_machine
from zerotools.sensors.topology import MemoryNode, NumaTopology, read_topology

MACHINES = {
    "two sockets": dual_socket(),
    "some of both may be used": dual_socket("0-3,20-23", "1"),
    "nodes that share a socket": a_topology("0-3", "4-7", sockets=[0, 0]),
    "memory without processors, and processors without memory": a_topology(
        "0-3", "", "4-7", memory_gib=[64, 96, 0], sockets=[0, None, None]
    ),
    "1,024 processors": a_topology("0-511", "512-1023", threads=2),
}


@pytest.mark.parametrize("name", MACHINES)
def test_a_machine_is_read_as_it_is(tmp_path: Path, name: str) -> None:
    made = MACHINES[name]
    root = show_machine(tmp_path, made)
    found = read_topology(root, lambda pid: made.allowed_cpus, cores=True)
    assert found == made
    assert found.is_divided


def test_cores_are_read_where_they_are_asked_for(tmp_path: Path) -> None:
    root = show_machine(tmp_path, dual_socket())
    assert read_topology(root, lambda pid: {0}).cores == ()


def test_a_core_of_which_a_thread_went_away_has_the_others(tmp_path: Path) -> None:
    root = show_machine(tmp_path, dual_socket())
    (root / "sys/devices/system/node/node0/cpulist").write_text("0-15,33-47\n")
    cores = read_topology(root, lambda pid: {0}, cores=True).cores
    assert frozenset({0}) in cores
    assert frozenset({1, 33}) in cores


def test_without_sys_there_are_no_nodes_and_all_that_may_be_used_is_known(tmp_path: Path) -> None:
    found = read_topology(tmp_path, lambda pid: {0, 1}, cores=True)
    assert found == NumaTopology((), frozenset({0, 1}))
    assert not found.is_divided


def test_a_kernel_without_cpusets_lets_every_node_be_used(tmp_path: Path) -> None:
    root = show_machine(tmp_path, dual_socket())
    (root / "proc/self/status").write_text("Name: x\n")
    assert read_topology(root, lambda pid: {0}).allowed_nodes == {0, 1}


def test_what_is_no_number_is_nothing(tmp_path: Path) -> None:
    root = show_machine(tmp_path, dual_socket())
    (root / "sys/devices/system/node/node1/cpulist").write_text("what\n")
    (root / "sys/devices/system/node/node1/meminfo").write_text("")
    assert read_topology(root, lambda pid: {0}).nodes[1] == MemoryNode(1, frozenset(), 0, None)


def test_one_node_is_not_divided_also_beside_memory_of_a_gpu() -> None:
    assert not a_topology("0-7").is_divided
    assert not a_topology("0-71", "", "", memory_gib=[480, 96, 0]).is_divided


def test_json_has_all_but_the_cores() -> None:
    made = dual_socket("0-3", "0")
    again = NumaTopology.from_json(made.to_json())
    assert (again.nodes, again.allowed_cpus) == (made.nodes, made.allowed_cpus)
    assert (again.allowed_nodes, again.cores) == (made.allowed_nodes, ())
    for broken in ({}, {"nodes": [3]}, {"nodes": [], "allowed_cpus": "x", "allowed_nodes": ""}):
        with pytest.raises(ValueError, match=r"topology|invalid"):
            NumaTopology.from_json(broken)


def test_this_machine_has_processors_that_this_process_may_use() -> None:
    found = read_topology(cores=True)
    assert found.allowed_cpus == os.sched_getaffinity(0)
    for node in found.nodes:
        assert node.memory_bytes < 2**50
        assert not node.cpus or found.homes_of(node.cpus) == (node,)
    assert not found.nodes or sum(node.memory_bytes for node in found.nodes) > GIB
