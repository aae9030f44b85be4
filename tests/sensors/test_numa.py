"""Memory nodes, as the kernel shows them."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from harness.fake_gpu_probe import fake_gpu
from tests.sensors.numa_machines import EIGHT, GIB, a_topology, dual_socket, gpus_near, show_machine
from zerotools.sensors.cpu_lists import cpu_list, numbers_in
from zerotools.sensors.numa import (
    MemoryNode,
    NearGpu,
    NumaTopology,
    memory_policy,
    near_gpus,
    read_topology,
)
from zerotools.sensors.snapshot import Gpu

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
        with pytest.raises(ValueError, match=r"describe memory nodes|invalid"):
            NumaTopology.from_json(broken)


def test_this_machine_has_processors_that_this_process_may_use() -> None:
    found = read_topology(cores=True)
    assert found.allowed_cpus == os.sched_getaffinity(0)
    for node in found.nodes:
        assert node.memory_bytes < 2**50
        assert not node.cpus or found.homes_of(node.cpus) == (node,)
    assert not found.nodes or sum(node.memory_bytes for node in found.nodes) > GIB


def test_nothing_is_preferred_where_nobody_asked() -> None:
    try:
        found = memory_policy()
    except OSError as error:
        pytest.skip(f"memory policies cannot be asked for here: {os.strerror(error.errno or 0)}")
    assert found == ("default", frozenset())


NOTHING = NearGpu()
LEFT, RIGHT = numbers_in("0-15,32-47"), numbers_in("16-31,48-63")


def test_each_gpu_has_the_processors_and_the_memory_of_its_node() -> None:
    near = near_gpus(EIGHT, dual_socket())
    assert [(each.cpus, each.homes, each.memory) for each in near] == [
        *[(LEFT, (0,), (0,))] * 4,
        *[(RIGHT, (1,), (1,))] * 4,
    ]
    assert [(each.place, each.sharers) for each in near] == [(n, 4) for n in range(4)] * 2


@pytest.mark.parametrize(
    "topology",
    [a_topology("0-7"), NumaTopology((), frozenset(range(8))), a_topology("0-7", "", "")],
)
def test_on_one_node_there_is_nothing_to_choose_and_nothing_to_say(topology: NumaTopology) -> None:
    assert near_gpus(gpus_near("0-7", None), topology) == (NOTHING, NOTHING)


def near_one(gpu: Gpu, topology: NumaTopology) -> NearGpu:
    return near_gpus([gpu], topology)[0]


def test_where_all_that_may_be_used_is_near_there_is_nothing_to_choose() -> None:
    (gpu,) = gpus_near("0-15,32-47")
    assert near_one(gpu, dual_socket("0-3")) == NOTHING
    (everywhere,) = gpus_near("0-63")  # as of a virtual machine that does not tell where it is
    assert near_one(everywhere, dual_socket()) == NOTHING


def test_a_cpuset_without_the_near_processors_is_said() -> None:
    (gpu,) = gpus_near("16-31")
    found = near_one(gpu, a_topology("0-15", "16-31", allowed="0-7"))
    assert found.cpus == frozenset()
    assert found.why == "none of the processors near GPU 0 (16-31) may be used here, only 0-7"


def test_a_cpuset_with_few_of_the_near_processors_is_not_worth_it() -> None:
    left, right = gpus_near("16-31", "16-31")
    topology = a_topology("0-15", "16-31", allowed="0-11,16-19")
    found = near_gpus([left, right], topology)
    assert {each.cpus for each in found} == {frozenset()}
    assert found[1].why == (
        "only 4 of the processors near GPU 1 (16-31) may be used here, too few for a process that "
        "may use 16 processors"
    )
    enough = a_topology("0-15", "16-31", allowed="0-11,16-27")
    assert [cpu_list(each.cpus) for each in near_gpus([left, right], enough)] == ["16-27"] * 2


def test_gpus_that_all_hang_on_one_of_two_sockets_stay_there() -> None:
    near = near_gpus(gpus_near(*["0-15,32-47"] * 4), dual_socket())
    assert {each.cpus for each in near} == {LEFT}


def test_a_node_that_is_a_small_part_of_the_machine_gives_way_to_its_socket() -> None:
    """AMD's NPS4: eight nodes, and two GPUs."""
    cpus = [f"{8 * node}-{8 * node + 7}" for node in range(8)]
    topology = a_topology(*cpus, sockets=[0] * 4 + [1] * 4)
    first, second = near_gpus(gpus_near("8-15", "40-47"), topology)
    assert (cpu_list(first.cpus), first.homes, first.memory) == ("0-31", (0, 1, 2, 3), (0, 1, 2, 3))
    assert (cpu_list(second.cpus), second.homes) == ("32-63", (4, 5, 6, 7))
    unknown = a_topology(*cpus, sockets=[None] * 8)
    assert near_gpus(gpus_near("8-15", "40-47"), unknown)[0].why == (
        "only 8 of the processors near GPU 0 (8-15) may be used here, too few for a process that "
        "may use 64 processors"
    )
    eight = near_gpus(gpus_near(*cpus), topology)
    assert [cpu_list(each.cpus) for each in eight] == cpus


def test_another_node_of_the_socket_will_do_where_that_of_the_gpu_may_not_be_used() -> None:
    cpus = ("0-7", "8-15", "16-23", "24-31")
    topology = a_topology(*cpus, sockets=[0, 0, 1, 1], allowed="8-31")
    (found,) = near_gpus(gpus_near("0-7"), replace(topology, allowed_cpus=numbers_in("8-23")))
    assert (cpu_list(found.cpus), found.homes, found.memory) == ("8-15", (1,), (1,))


def test_processors_that_are_offline_are_left_out_or_the_memory_tells() -> None:
    (some,) = gpus_near("0-15,64-79")
    assert near_one(some, a_topology("0-15", "16-31")).cpus == numbers_in("0-15")
    (none,) = gpus_near("64-79")
    assert near_one(none, a_topology("0-15", "16-31")).why == (
        "none of the processors near GPU 0 (64-79) is online"
    )
    told = replace(none, numa_node=1)
    assert near_one(told, a_topology("0-15", "16-31")).cpus == numbers_in("16-31")


def test_a_driver_that_tells_only_the_node_is_believed() -> None:
    gpu = fake_gpu(0, numa_node=1)
    found = near_one(gpu, dual_socket())
    assert (found.cpus, found.memory) == (RIGHT, (1,))


def test_memory_of_a_gpu_is_no_place_for_what_the_host_allocates() -> None:
    """Grace Hopper: the memory of each GPU is a node, without processors."""
    topology = a_topology("0-71", "72-143", "", "", memory_gib=[480, 480, 96, 96])
    gpus = [replace(gpu, numa_node=2) for gpu in gpus_near("0-71", "72-143")]
    assert [(each.homes, each.memory) for each in near_gpus(gpus, topology)] == [
        ((0,), (0,)),
        ((1,), (1,)),
    ]
    (alone,) = near_gpus([fake_gpu(0, numa_node=2)], topology)
    assert alone.why == "the driver does not report the processors near GPU 0"


def test_memory_of_an_expander_is_not_preferred() -> None:
    topology = a_topology("0-15", "16-31", "", memory_gib=[64, 64, 1024])
    (found,) = near_gpus(gpus_near("16-31"), topology)
    assert (found.homes, found.memory) == ((1,), (1,))


def test_processors_without_memory_are_near_all_the_same() -> None:
    topology = a_topology("0-15", "16-31", memory_gib=[64, 0])
    (found,) = near_gpus(gpus_near("16-31"), topology)
    assert (found.cpus, found.homes, found.memory) == (numbers_in("16-31"), (1,), ())


def test_memory_that_the_cpuset_forbids_is_not_preferred() -> None:
    near = near_gpus(EIGHT, dual_socket(allowed_nodes="0"))
    assert [each.memory for each in near] == [(0,)] * 4 + [()] * 4


def test_a_gpu_of_which_nothing_is_told_says_why_and_leaves_the_others() -> None:
    divided = fake_gpu(4, mig_instances=["MIG-1"], error="it is divided")
    silent = replace(divided, missing={"cpu_affinity": "NVML: Not Supported"})
    *near, last = near_gpus([*EIGHT[:4], silent], dual_socket())
    assert {each.cpus for each in near} == {LEFT}
    assert last.why == (
        "the driver does not report the processors near GPU 4 (NVML: Not Supported)"
    )


def test_a_list_that_is_none_is_no_answer() -> None:
    (gpu,) = gpus_near("what")
    assert near_one(gpu, dual_socket()).why == (
        "the driver does not report the processors near GPU 0"
    )


def test_a_thousand_processors_that_alternate_are_named_by_their_number() -> None:
    even, odd = (",".join(map(str, range(first, 1024, 2))) for first in (0, 1))
    near = near_gpus(gpus_near(even, odd), a_topology(even, odd))
    assert [len(each.cpus) for each in near] == [512, 512]
    far = near_gpus(gpus_near(even, odd), a_topology(even, odd, allowed="1,3,5"))
    assert far[0].why == (
        "none of the processors near GPU 0 (512 processors) may be used here, only 1,3,5"
    )
