"""What ranks keep to, of jobs and machines of every kind."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.daemon.daemons import make_job
from tests.daemon.made_attempts import an_attempt_row
from tests.sensors.numa_machines import EIGHT, a_topology, dual_socket, gpus_near
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.sensors.cpu_lists import cpu_list, numbers_in
from zerotools.sensors.numa import NumaTopology
from zerotools.sensors.snapshot import Gpu
from zerotoolsd.attempts.choose_numa_binding import (
    UNBOUND,
    RankBinder,
    RankBindings,
    bind_ranks,
    core_share,
    shown_binding,
)
from zerotoolsd.supervisor.set_numa_binding import RankBinding

LEFT, RIGHT = RankBinding("0-15,32-47", (0,)), RankBinding("16-31,48-63", (1,))
PROCESS = "4242:1000:3f7c0d1e-0000-4000-8000-000000000000"


def on_gpus(count: int, **changes: Any) -> JobSpec:
    train = {"steps": 1, "batch_size": count}
    return make_job("", device="cuda", ranks=None, gpus=count, train=train, **changes)


def on_cpus(count: int, **changes: Any) -> JobSpec:
    return make_job("", ranks=count, train={"steps": 1, "batch_size": count}, **changes)


def a_script(count: int, launcher: str, **changes: Any) -> JobSpec:
    script = {"command": ["train.py"], "launcher": launcher, "directory": "/"}
    keys: dict[str, Any] = {"engine": "script", "gpus": count, "script": script}
    return job_from_dict({**keys, **changes}, source="test")


def bound(
    spec: JobSpec,
    *indices: int,
    gpus: Sequence[Gpu] = EIGHT,
    topology: NumaTopology | None = None,
) -> RankBindings:
    uuids = [f"GPU-fake-{index}" for index in indices]
    return bind_ranks(spec, spec.world_size, uuids, gpus, topology or dual_socket())


def test_a_rank_has_all_processors_of_the_node_of_its_gpu() -> None:
    found = bound(on_gpus(8), *range(8))
    assert found.ranks == (LEFT,) * 4 + (RIGHT,) * 4
    assert found.threads == 8
    assert found.said == (
        "ranks 0-3 on memory node 0 (32 processors), ranks 4-7 on memory node 1 (32 processors)"
    )


def test_the_binding_follows_the_gpus_of_the_attempt_and_their_order() -> None:
    spec = on_gpus(2)
    assert bound(spec, 0, 1).ranks == (LEFT, LEFT)
    assert bound(spec, 6, 2).ranks == (RIGHT, LEFT)
    assert bound(spec, 6, 2).said == (
        "rank 0 on memory node 1 (32 processors), rank 1 on memory node 0 (32 processors)"
    )
    assert bound(spec, 4, 5).said == "all ranks on memory node 1 (32 processors)"
    assert bound(on_gpus(1), 4).said == "on memory node 1 (32 processors)"


@pytest.mark.parametrize(
    ("indices", "threads"), [((3,), 32), ((0, 1), 16), ((0, 1, 4), 16), ((0, 1, 2, 3), 8)]
)
def test_ranks_that_share_a_node_share_its_threads(indices: tuple[int, ...], threads: int) -> None:
    assert bound(on_gpus(len(indices)), *indices).threads == threads


def test_two_jobs_of_one_node_may_both_use_all_of_it() -> None:
    first, second = bound(on_gpus(2), 0, 1), bound(on_gpus(1), 2)
    assert {*first.ranks, *second.ranks} == {LEFT}


def test_with_cores_of_their_own_no_two_gpus_meet_whichever_jobs_have_them() -> None:
    whole = bound(on_gpus(8, numa="cores"), *range(8)).ranks
    assert [rank.cpus for rank in whole[:2]] == ["0-3,32-35", "4-7,36-39"]
    assert whole[7].cpus == "28-31,60-63"
    assert [rank.nodes for rank in whole] == [(0,)] * 4 + [(1,)] * 4
    alone = bound(on_gpus(1, numa="cores"), 7)
    assert alone.ranks == whole[7:]
    assert alone.threads == 8
    assert alone.said == "on memory node 1 (8 processors)"


def test_off_and_one_node_and_a_process_that_is_watched_are_left() -> None:
    assert bound(on_gpus(2, numa="off"), 0, 1) == UNBOUND
    assert bound(on_gpus(2), 0, 1, topology=a_topology("0-63")) == UNBOUND
    assert bound(on_gpus(2), 0, 1, topology=NumaTopology((), frozenset(range(64)))) == UNBOUND
    script = {"command": ["train.py"], "directory": "/", "adopted": PROCESS}
    keys = {"engine": "script", "device": "cpu", "max_restarts": 0, "script": script}
    assert bound(job_from_dict(keys, source="test"), topology=dual_socket()) == UNBOUND


def test_where_all_is_near_nothing_is_said() -> None:
    assert bound(on_gpus(2), 0, 1, topology=dual_socket("0-7")) == UNBOUND


def test_why_a_rank_is_not_bound_is_kept_and_the_others_are() -> None:
    found = bound(on_gpus(3), 0, 4, 9)
    assert found.ranks == (LEFT, RIGHT, RankBinding(why="NVML has not shown GPU-fake-9 yet"))
    assert found.threads == 21  # of 64, for three
    assert found.said is not None
    assert found.said.endswith("rank 2 not bound: NVML has not shown GPU-fake-9 yet")


def test_a_cpuset_without_the_near_processors_binds_nothing_and_says_so() -> None:
    found = bound(on_gpus(2), 4, 5, topology=dual_socket("0-7"))
    why = "none of the processors near GPU {} (16-31,48-63) may be used here, only 0-7"
    assert found.ranks == (RankBinding(why=why.format(4)), RankBinding(why=why.format(5)))
    assert found.threads is None


def test_processors_without_memory_prefer_none() -> None:
    topology = a_topology("0-15,32-47", "16-31,48-63", memory_gib=[64, 0])
    found = bound(on_gpus(1), 4, topology=topology)
    assert found.ranks == (RankBinding("16-31,48-63", ()),)
    assert found.said == "on memory node 1 (32 processors; memory there may not be used)"


def test_several_nodes_of_a_socket() -> None:
    cpus = [f"{8 * node}-{8 * node + 7}" for node in range(8)]
    topology = a_topology(*cpus, sockets=[0] * 4 + [1] * 4)
    found = bound(on_gpus(1), 1, gpus=gpus_near("8-15", "40-47"), topology=topology)
    assert found.ranks == (RankBinding("32-63", (4, 5, 6, 7)),)
    assert found.said == "on memory nodes 4-7 (32 processors)"


def test_a_launcher_is_bound_as_a_whole_where_its_gpus_are_on_one_node() -> None:
    found = bound(a_script(2, "torchrun"), 4, 5)
    assert (found.ranks, found.threads) == ((RIGHT,), 16)
    own = bound(a_script(2, "torchrun", numa="cores"), 4, 5)
    assert own.ranks == (RankBinding("16-23,48-55", (1,)),)
    assert own.threads == 8
    assert bound(a_script(2, "plain"), 4, 5).ranks == (RIGHT, RIGHT)
    assert bound(a_script(2, "torchrun"), 4, 5, topology=dual_socket("16-31")) == UNBOUND


@pytest.mark.parametrize("launcher", ["torchrun", "accelerate", "deepspeed"])
def test_a_launcher_of_ranks_on_several_nodes_is_left(launcher: str) -> None:
    found = bound(a_script(2, launcher), 0, 4)
    why = f"{launcher} starts all ranks, but the ranks belong on different memory nodes"
    assert found == RankBindings((RankBinding(why=why),), None, f"not bound: {why}")


def test_ranks_on_cpus_are_spread_where_each_node_gets_as_many() -> None:
    found = bound(on_cpus(4))
    assert found.ranks == (LEFT, LEFT, RIGHT, RIGHT)
    assert found.threads == 16
    own = bound(on_cpus(4, numa="cores"))
    assert [rank.cpus for rank in own.ranks] == [
        "0-7,32-39",
        "8-15,40-47",
        "16-23,48-55",
        "24-31,56-63",
    ]
    assert own.threads == 16


@pytest.mark.parametrize(
    ("count", "allowed", "why"),
    [
        (1, None, "1 rank cannot be spread evenly over 2 memory nodes"),
        (3, None, "3 ranks cannot be spread evenly over 2 memory nodes"),
        (2, "0-15,16-18", "the 2 memory nodes have from 3 to 16 usable processors"),
    ],
)
def test_ranks_on_cpus_that_are_not_spread_evenly_are_left(
    count: int, allowed: str | None, why: str
) -> None:
    found = bound(on_cpus(count), topology=dual_socket(allowed))
    assert found.ranks == (RankBinding(why=why),) * count
    assert found.threads is None
    assert found.said == ("" if count == 1 else "all ranks ") + f"not bound: {why}"


def test_ranks_on_cpus_with_one_node_to_use_are_left_in_silence() -> None:
    assert bound(on_cpus(2), topology=dual_socket("0-7")) == UNBOUND


def test_a_launcher_on_cpus_starts_ranks_on_several_nodes() -> None:
    spec = a_script(2, "torchrun", device="cpu", gpus=None, ranks=2)
    why = "torchrun starts all ranks, but the ranks belong on different memory nodes"
    assert bound(spec).ranks == (RankBinding(why=why),)


def test_there_is_one_thread_at_least() -> None:
    gpus = gpus_near(*["0-1"] * 4, "2-3")
    assert bound(on_gpus(4), *range(4), gpus=gpus, topology=a_topology("0-1", "2-3")).threads == 1


class Machine:
    """Its topology, and with or without its cores it was asked for."""

    def __init__(self) -> None:
        self.allowed: str | None = None
        self.asked: list[bool] = []

    def topology(self, *, cores: bool = False) -> NumaTopology:
        self.asked.append(cores)
        return dual_socket(self.allowed)


def test_processors_that_were_taken_away_are_not_used_by_the_next_attempt() -> None:
    machine = Machine()
    placer = RankBinder(lambda: EIGHT, machine.topology)
    attempt = an_attempt_row(gpu_uuids=("GPU-fake-0",), world_size=1)
    assert placer.bindings_for(on_gpus(1), attempt).ranks == (LEFT,)
    machine.allowed = "0-7,16-31"
    assert placer.bindings_for(on_gpus(1), attempt).ranks[0].cpus == "0-7"
    assert placer.bindings_for(on_gpus(1, numa="cores"), attempt).ranks[0].cpus == "0-1"
    assert machine.asked == [False, False, True]


def test_a_job_that_is_left_alone_costs_no_look() -> None:
    machine = Machine()
    placer = RankBinder(lambda: EIGHT, machine.topology)
    attempt = an_attempt_row(gpu_uuids=("GPU-fake-0",), world_size=1)
    assert placer.bindings_for(on_gpus(1, numa="off"), attempt) == UNBOUND
    assert machine.asked == []


def test_the_size_is_that_of_the_attempt() -> None:
    placer = RankBinder(lambda: (), Machine().topology)
    spec = on_cpus(1)
    sizes = (None, 2, 4)
    found = [placer.bindings_for(spec, an_attempt_row(world_size=size)).ranks for size in sizes]
    assert [len(ranks) for ranks in found] == [1, 2, 4]
    assert [ranks[0].cpus for ranks in found] == ["", LEFT.cpus, LEFT.cpus]


def a_rank(number: int, cpus: Any = "0-15", nodes: Any = None, **changes: Any) -> dict[str, Any]:
    nodes = [0] if nodes is None else nodes
    binding = {"cpus": cpus, "nodes": nodes, "why": None, **changes}
    return {"rank": number, "pid": 100 + number, "binding": binding}


def ended(*ranks: object) -> tuple[dict[str, Any], ...] | None:
    return shown_binding(an_attempt_row(result={"ranks": list(ranks)}))


def test_ranks_with_the_same_are_one_line() -> None:
    failed = "its memory node cannot be preferred: Operation not permitted"
    found = ended(
        a_rank(0),
        a_rank(1),
        a_rank(2, "16-31", [1], why=failed),
        a_rank(3, "", [], why="the driver does not report"),
        a_rank(4),
    )
    assert found == (
        {"ranks": "0-1,4", "cpus": "0-15", "memory_nodes": [0], "why": None},
        {"ranks": "2", "cpus": "16-31", "memory_nodes": [1], "why": failed},
        {"ranks": "3", "cpus": "", "memory_nodes": [], "why": "the driver does not report"},
    )


def test_of_one_that_runs_its_supervisor_says_it(tmp_path: Path) -> None:
    running = an_attempt_row(state="running", run_dir=str(tmp_path), result=None)
    assert shown_binding(running) is None
    (tmp_path / "run.json").write_text(json.dumps({"pid": 1, "ranks": [a_rank(0)]}))
    assert shown_binding(running) == (
        {"ranks": "0", "cpus": "0-15", "memory_nodes": [0], "why": None},
    )
    (tmp_path / "run.json").write_text("{")
    assert shown_binding(running) is None


@pytest.mark.parametrize(
    "rank",
    [
        {"rank": 0, "pid": 1},
        {"rank": 0, "binding": "all"},
        a_rank(-1),
        a_rank(2**70),
        a_rank(True),
        a_rank(0, cpus=["0"]),
        a_rank(0, cpus="0-15\x1b[31m"),
        a_rank(0, cpus="0," * 10_000 + "0"),
        a_rank(0, nodes="0"),
        a_rank(0, nodes=["0"]),
        a_rank(0, nodes=[-1]),
        a_rank(0, nodes=[0] * 2000),
        7,
    ],
)
def test_what_is_no_binding_is_not_shown(rank: object) -> None:
    assert ended(rank) is None


def test_a_reason_is_one_line_and_not_endless() -> None:
    (line,) = ended(a_rank(0, why="a\n\x1b[2J" + "b" * 9999)) or ()
    assert line["why"].isprintable()
    assert len(line["why"]) == 500


def test_records_without_ranks_say_nothing() -> None:
    assert shown_binding(an_attempt_row(result=None)) is None
    assert shown_binding(an_attempt_row(result={"ranks": 3})) is None


LEFT_CORES = numbers_in("0-15,32-47")


def shares(cpus: frozenset[int], cores: tuple[frozenset[int], ...], sharers: int) -> list[str]:
    return [cpu_list(core_share(cpus, cores, place, sharers)) for place in range(sharers)]


def test_hardware_threads_of_a_core_stay_together_and_neighbours_too() -> None:
    assert shares(LEFT_CORES, dual_socket().cores, 4) == [
        "0-3,32-35",
        "4-7,36-39",
        "8-11,40-43",
        "12-15,44-47",
    ]


@pytest.mark.parametrize("sharers", [1, 2, 3, 5, 7, 16])
def test_every_core_is_given_to_one(sharers: int) -> None:
    cores = dual_socket().cores
    found = [core_share(LEFT_CORES, cores, place, sharers) for place in range(sharers)]
    assert sorted(cpu for share in found for cpu in share) == sorted(LEFT_CORES)
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
