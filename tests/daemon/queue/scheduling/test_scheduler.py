"""The scheduler: who starts, where, and what the others are told."""

from __future__ import annotations

import dataclasses

from hypothesis import given
from hypothesis import strategies as st

from harness.fake_gpu_probe import fake_gpu
from tests.daemon.queue.scheduling.deciding import cpu, decide, gpus, lease, seen, started, wants
from zerotoolsd.config.config_tables import LimitsConfig
from zerotoolsd.queue.scheduling.resource_requests import Request


def test_gpus_are_given_by_number_index_and_uuid() -> None:
    requests = [wants(1, 2), wants(2, (3,)), wants(3, ("GPU-fake-2",))]
    assert started(decide(requests, gpus(4))) == {1: [0, 1], 2: [3], 3: [2]}


def test_a_list_keeps_its_order() -> None:
    assert started(decide([wants(1, (2, "GPU-fake-0"))], gpus(4))) == {1: [2, 0]}


def test_a_job_that_waits_for_gpus_blocks_no_cpu_job() -> None:
    decisions = decide([wants(1, 2), cpu(2, 4)], gpus(1))
    assert started(decisions) == {2: []}


def test_what_a_waiting_job_could_use_is_kept_for_it() -> None:
    decisions = decide([wants(1, 3), wants(2, 1)], gpus(3), leases=[lease(0)])
    assert started(decisions) == {}
    assert "GPUs 1-2: kept for job 1" in decisions.waits[2]


def test_nothing_is_kept_for_a_job_that_waits_for_strangers() -> None:
    machine = seen(fake_gpu(0, used_gib=20), *(fake_gpu(index, used_gib=0) for index in (1, 2, 3)))
    decisions = decide([wants(1, 4), wants(2, 2), wants(3, 1)], machine)
    assert started(decisions) == {2: [1, 2], 3: [3]}
    assert decisions.waits[1].startswith("needs 4 GPUs: 3 of 4 free: GPU 0: 20.0 of")
    assert decisions.waits[1].endswith("; no GPU is reserved for it meanwhile")


def test_what_is_kept_is_lent_to_a_job_that_ends_before() -> None:
    def lasting(job_id: int, seconds: float | None) -> Request:
        return dataclasses.replace(wants(job_id, 1), lasts=seconds)

    requests = [wants(1, 3), lasting(2, None), lasting(3, 51.0), lasting(4, 50.0)]
    decisions = decide(requests, gpus(3), leases=[lease(0)], ends={9: 150.0})
    assert started(decisions) == {4: [1]}
    assert "GPUs 1-2: kept for job 1" in decisions.waits[2]
    without_a_limit = decide(requests, gpus(3), leases=[lease(0)])
    assert started(without_a_limit) == {}


def test_a_job_that_waits_for_one_gpu_leaves_the_others_free() -> None:
    decisions = decide([wants(1, (0,)), wants(2, 1)], gpus(2), leases=[lease(0)])
    assert started(decisions) == {2: [1]}


def test_cpu_ranks_are_bounded_in_total_and_in_order() -> None:
    decisions = decide([cpu(1, 4), cpu(2, 4), cpu(3, 1)], cpu_ranks_used=2)
    assert started(decisions) == {1: []}
    assert decisions.waits == {
        2: "needs 4 CPU ranks: 6 of limits.cpu_ranks = 8 are in use",
        3: "needs 1 CPU rank: waits behind job 2",
    }


def test_cpu_ranks_that_were_taken_under_a_higher_limit_run_alone() -> None:
    lower = LimitsConfig(cpu_ranks=2)
    after_another = decide([cpu(1, 4), cpu(2, 1)], cpu_ranks_used=1, limits=lower)
    assert started(after_another) == {}
    alone = decide([cpu(1, 4), cpu(2, 1)], limits=lower)
    assert started(alone) == {1: []}
    assert set(alone.waits) == {2}
    assert started(decide([cpu(1, 4)], limits=LimitsConfig(cpu_ranks=0))) == {}


machines = st.lists(st.sampled_from(["free", "leased", "busy", "broken"]), max_size=6)
demands = st.lists(
    st.integers(1, 4) | st.lists(st.integers(0, 6), min_size=1, max_size=3, unique=True),
    max_size=6,
)


@given(machines, demands)
def test_no_gpu_is_given_twice_or_taken_from_anyone(
    machine: list[str], demand: list[int | list[int]]
) -> None:
    shown = [
        fake_gpu(i, used_gib=9 if kind == "busy" else 0, error="x" if kind == "broken" else None)
        for i, kind in enumerate(machine)
    ]
    leases = [lease(i) for i, kind in enumerate(machine) if kind == "leased"]
    requests = [
        wants(i, tuple(each) if isinstance(each, list) else each) for i, each in enumerate(demand)
    ]
    decisions = decide(requests, seen(*shown), leases=leases)
    given = [index for indices in started(decisions).values() for index in indices]
    assert len(set(given)) == len(given)
    assert all(machine[index] == "free" for index in given)
    assert {s.job_id for s in decisions.starts} | decisions.waits.keys() == set(range(len(demand)))
    assert all(len(s.gpu_uuids) == requests[s.job_id].need.world_size for s in decisions.starts)


Jobs = dict[int, tuple[float, list[int]]]
"""Running jobs: when each ends, and its GPUs."""


def start_of_first(count: int, running: Jobs, requests: list[Request]) -> float:
    """When the first request starts, if every job takes all of its time."""
    running, waiting, now = dict(running), list(requests), 100.0
    while True:
        leases = [lease(i, job_id=job) for job, (_, held) in running.items() for i in held]
        machine = dataclasses.replace(gpus(count), taken_at=now)
        ends = {job: end for job, (end, _) in running.items()}
        begun = started(decide(waiting, machine, now=now, leases=leases, ends=ends))
        if requests[0].job_id in begun:
            return now
        lasts = {each.job_id: each.lasts or 1e6 for each in waiting}
        running |= {job: (now + lasts[job], held) for job, held in begun.items()}
        waiting = [each for each in waiting if each.job_id not in begun]
        now = min(end for end, _ in running.values())
        running = {job: it for job, it in running.items() if it[0] > now}


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.integers(0, 2),
    st.lists(st.tuples(st.integers(1, 4), st.none() | st.integers(1, 12)), max_size=5),
)
def test_later_jobs_do_not_delay_the_first(
    busy: list[int], free: int, later: list[tuple[int, int | None]]
) -> None:
    count = len(busy) + free
    running = {100 + i: (100.0 + left, [i]) for i, left in enumerate(busy)}
    others = [
        dataclasses.replace(wants(i, min(need, count)), lasts=lasts)
        for i, (need, lasts) in enumerate(later, 2)
    ]
    alone = start_of_first(count, running, [wants(1, count)])
    assert start_of_first(count, running, [wants(1, count), *others]) == alone
