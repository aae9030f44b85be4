"""Several jobs on one GPU, by the memory that they declare."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.fake_gpu_probe import fake_gpu
from tests.daemon.queue.scheduling.deciding import LIMITS, decide, gpus, seen, started, wants
from tests.daemon.queue.scheduling.test_memory_left_for_jobs import MEMORY, share
from tests.matrices import examples
from zerotools.sensors.excluded_and_preferred_gpus import GpuChoice
from zerotoolsd.queue.rows import Lease
from zerotoolsd.queue.scheduling.memory_left_for_jobs import GIB, DeclaredMemory, free_shared_memory
from zerotoolsd.queue.scheduling.reserve_and_assign_gpus import GpuAllocation
from zerotoolsd.queue.scheduling.resource_requests import Request, ResourceNeed
from zerotoolsd.queue.scheduling.scheduler import PassDecisions
from zerotoolsd.queue.scheduling.suitable_gpus import occupied_gpus, usable_gpus


def small(job_id: int, gib: int, gpus: int = 1, lasts: float | None = None) -> Request:
    need = dataclasses.replace(wants(job_id, gpus).need, gpu_bytes=gib * GIB)
    return Request(job_id=job_id, need=need, lasts=lasts)


def pack(requests: list[Request], machine: Any = None, **changes: Any) -> PassDecisions:
    return decide(requests, machine or gpus(2), **{"memory": MEMORY, **changes})


def test_they_fill_one_gpu_before_the_next_and_a_whole_one_stays_free() -> None:
    decisions = pack([small(1, 30), small(2, 30), wants(3, 1), small(4, 30)])
    assert started(decisions) == {1: [0], 2: [0], 3: [1]}
    assert [start.gpu_bytes for start in decisions.starts] == [30 * GIB, 30 * GIB, None]
    assert decisions.waits[4] == (
        "needs 31.0 GiB (memory.per_gpu plus 1.0 GiB for the CUDA context) on 1 GPU: 0 of 2 GPUs "
        "have that much free: GPU 0: has 18.0 GiB left; GPU 1: job 3"
    )


def test_the_best_fit_is_taken() -> None:
    leases = [share(0, 7, 30), share(1, 8, 60)]
    assert started(pack([small(1, 15), small(2, 40)], leases=leases)) == {1: [1], 2: [0]}


def test_a_job_of_several_gpus_has_its_share_on_each() -> None:
    decisions = pack([small(1, 50, gpus=2), small(2, 25), small(3, 28, gpus=2)])
    assert started(decisions) == {1: [0, 1], 2: [0]}


def test_a_gpu_with_a_share_is_not_given_as_a_whole_and_none_beside_a_whole_one() -> None:
    decisions = pack([small(1, 1), wants(2, 2)], leases=[share(1, 9, None)])
    assert started(decisions) == {1: [0]}
    assert "GPU 0: shared by job 1; GPU 1: job 9" in decisions.waits[2]
    both = pack([wants(1, 1)], gpus(1), leases=[share(0, 7, 1), share(0, 8, 1)])
    assert both.waits[1].endswith("GPU 0: job 7, job 8")


def test_small_ones_do_not_starve_a_larger_share() -> None:
    leases = [share(0, 7, 40), share(1, 8, 50)]
    decisions = pack([small(1, 60), small(2, 20), small(3, 20)], leases=leases)
    assert started(decisions) == {2: [1]}  # GPU 0, with the most room, is left to job 1
    assert "GPU 0: kept for job 1; GPU 1: has 8.0 GiB left" in decisions.waits[3]


def test_small_ones_do_not_starve_a_job_of_whole_gpus_unless_they_end_in_time() -> None:
    values: dict[str, Any] = {"leases": [share(0, 7, 10)], "ends": {7: 150.0}}
    requests = [wants(1, 2), small(2, 5), small(3, 5, lasts=60.0), small(4, 5, lasts=40.0)]
    decisions = pack(requests, **values)
    assert started(decisions) == {4: [0]}
    assert "GPUs 0-1: kept for job 1" in decisions.waits[2]


def test_what_others_use_counts() -> None:
    machine = seen(fake_gpu(0, total_gib=80, used_gib=70))
    shared = [share(0, 7, 10)]
    own = DeclaredMemory(context=GIB, own={"GPU-fake-0": 10 * GIB})
    assert started(pack([small(1, 10)], machine, leases=shared, memory=own)) == {}
    assert started(pack([small(1, 7)], machine, leases=shared, memory=own)) == {1: [0]}


leased = st.lists(
    st.tuples(st.integers(0, 3), st.none() | st.integers(1, 50), st.booleans()), max_size=5
)
asked = st.lists(
    st.tuples(
        st.integers(1, 3) | st.lists(st.integers(0, 3), min_size=1, max_size=2, unique=True),
        st.none() | st.sampled_from([5, 20, 39, 78]),
        st.none() | st.sampled_from([5.0, 20.0, 60.0]),
    ),
    max_size=14,
)


@given(leased, asked, st.integers(1, 4), st.integers(0, 60))
@settings(max_examples=examples(300))
def test_no_gpu_gets_more_than_it_has_and_a_pass_looks_at_all_by_looking_at_few(
    before: list[tuple[int, int | None, bool]],
    wanted: list[tuple[int | list[int], int | None, float | None]],
    count: int,
    foreign: int,
) -> None:
    leases: list[Lease] = []
    for job_id, (index, gib, _) in enumerate(before, 900):
        there = [lease for lease in leases if lease.gpu_uuid == f"GPU-fake-{index}"]
        if not there or (gib is not None and all(lease.bytes is not None for lease in there)):
            leases.append(share(index, job_id, gib))
    ends = {900 + i: 110.0 + i for i, (_, _, known) in enumerate(before) if known}
    machine = seen(*(fake_gpu(i, used_gib=foreign if i == 0 else 0) for i in range(count)))
    memory = DeclaredMemory(context=GIB, own={gpu.uuid or "": 0 for gpu in machine.gpus})
    requests = [_request(job_id, *each) for job_id, each in enumerate(wanted)]
    found = pack(requests, machine, leases=leases, ends=ends, memory=memory)
    assert [(s.job_id, s.gpu_uuids) for s in found.starts] == one_by_one(
        requests, machine.gpus, leases, ends, memory
    )
    assert {s.job_id for s in found.starts} | found.waits.keys() == set(range(len(requests)))
    taken = [(lease.gpu_uuid, lease.bytes) for lease in leases]
    taken += [(uuid, start.gpu_bytes) for start in found.starts for uuid in start.gpu_uuids]
    given_now = {uuid for start in found.starts for uuid in start.gpu_uuids}
    for gpu in machine.gpus:
        here = [size for uuid, size in taken if uuid == gpu.uuid]
        if gpu.uuid in given_now and None not in here:
            used = gpu.memory_used_bytes or 0
            assert used + sum((size or 0) + GIB for size in here) <= (gpu.memory_total_bytes or 0)
        assert None not in here or len(here) == 1 or gpu.uuid not in given_now


def _request(job_id: int, gpus: int | list[int], gib: int | None, lasts: float | None) -> Request:
    need = ResourceNeed(
        world_size=gpus if isinstance(gpus, int) else len(gpus),
        gpus=gpus if isinstance(gpus, int) else tuple(gpus),
        gpu_bytes=None if gib is None else gib * GIB,
    )
    return Request(job_id=job_id, need=need, lasts=lasts)


def one_by_one(
    requests: list[Request],
    machine: Any,
    leases: list[Lease],
    ends: dict[int, float],
    memory: DeclaredMemory,
) -> list[tuple[int, tuple[str, ...]]]:
    """Every job in turn; the first that waits of each need is kept what it waits for."""
    taken = occupied_gpus(machine, leases, LIMITS)
    allocation = GpuAllocation(
        machine, taken, 100.0, free_shared_memory(machine, leases, taken, memory), memory.context
    )
    for lease in leases:
        allocation.runs_until(lease.gpu_uuid, ends.get(lease.job_id))
    starts, waiting = [], set()
    for request in requests:
        wanted = usable_gpus(request.need, machine)[0]
        given = allocation.assign(request, wanted)
        if given is not None:
            starts.append((request.job_id, tuple(str(gpu.uuid) for gpu in given)))
        elif request.need not in waiting:
            allocation.reserve(request, wanted)
            waiting.add(request.need)
    return starts


def test_shares_of_gpus_that_the_owner_prefers_come_first_and_excluded_ones_have_none() -> None:
    leases = [share(0, 7, 10)]
    assert started(pack([small(1, 20)], gpus(3), leases=leases)) == {1: [0]}
    chosen = GpuChoice(exclude=(0,), prefer=(2,)).of(gpus(3))
    found = pack([small(1, 20), small(2, 70), small(3, 20)], chosen, leases=leases)
    assert started(found) == {1: [2], 2: [1], 3: [2]}
