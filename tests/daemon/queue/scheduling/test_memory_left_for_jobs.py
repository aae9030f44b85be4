"""What is left of memory that jobs declare."""

from __future__ import annotations

import dataclasses

from harness.fake_gpu_probe import fake_gpu
from tests.daemon.queue.scheduling.deciding import LIMITS, cpu, decide, gpus, seen, started, wants
from zerotoolsd.queue.rows import Lease
from zerotoolsd.queue.scheduling.memory_left_for_jobs import GIB, DeclaredMemory, free_shared_memory
from zerotoolsd.queue.scheduling.resource_requests import Request
from zerotoolsd.queue.scheduling.suitable_gpus import usable_gpus, why_impossible

MEMORY = DeclaredMemory(context=GIB)


def share(index: int, job_id: int, gib: int | None, held_by: str | None = None) -> Lease:
    size = None if gib is None else gib * GIB
    return Lease(
        gpu_uuid=f"GPU-fake-{index}", job_id=job_id, attempt=1, bytes=size, held_by=held_by
    )


def test_shares_contexts_and_what_others_use_are_taken_off() -> None:
    machine = [fake_gpu(index, total_gib=80, used_gib=20) for index in range(2)]
    leases = [share(0, 1, 10), share(0, 2, 20)]
    taken = {0: "job 1, job 2"}
    # All of the 20 GiB may be ours; the driver says that 5 GiB are.
    assert free_shared_memory(machine, leases, taken, MEMORY) == {0: 48 * GIB, 1: 60 * GIB}
    known = dataclasses.replace(MEMORY, own={"GPU-fake-0": 5 * GIB})
    assert free_shared_memory(machine, leases, taken, known)[0] == 33 * GIB


def test_a_whole_one_a_fenced_one_and_one_with_an_error_have_no_room() -> None:
    machine = [fake_gpu(0), fake_gpu(1), fake_gpu(2, error="lost"), fake_gpu(3)]
    leases = [share(0, 1, None), share(1, 2, 1, held_by="pid 7"), share(2, 3, 1)]
    taken = dict.fromkeys((0, 1, 2, 3), "taken")
    assert free_shared_memory(machine, leases, taken, MEMORY) == {}


def test_one_on_which_nothing_more_is_placed_has_no_room() -> None:
    machine = [fake_gpu(0, used_gib=0), fake_gpu(1, used_gib=0)]
    taken = {0: "gets no more jobs"}
    found = free_shared_memory(machine, [share(0, 1, 10)], taken, MEMORY, {"GPU-fake-0"})
    assert found == {1: 80 * GIB}


def test_a_share_that_no_gpu_has_is_refused_and_so_is_too_much_of_the_host() -> None:
    need = dataclasses.replace(wants(1, 1).need, gpu_bytes=80 * GIB)
    assert why_impossible(need, gpus(2), LIMITS, MEMORY) == (
        "gpus: the job needs 1 GPU, but can use only 0 of 2: GPUs 0-1: 80.0 GiB of memory, but "
        "memory.per_gpu is 80.0 GiB plus 1.0 GiB for the CUDA context"
    )
    larger = seen(fake_gpu(0), fake_gpu(1, total_gib=96))
    assert why_impossible(need, larger, LIMITS, MEMORY) is None
    host = dataclasses.replace(cpu(1, 1).need, host_bytes=9 * GIB)
    assert why_impossible(host, None, LIMITS, DeclaredMemory(host_total=9 * GIB)) is None
    assert str(why_impossible(host, None, LIMITS, DeclaredMemory(host_total=8 * GIB))).startswith(
        "memory.host is 9.0 GiB, but all jobs together may declare only 8.0 GiB (limits.host_memory"
    )


def host(job_id: int, gib: int, *, gpu: bool = False) -> Request:
    base = wants(job_id, 1) if gpu else cpu(job_id, 1)
    need = dataclasses.replace(base.need, host_bytes=gib * GIB)
    return dataclasses.replace(base, need=need)


def test_host_memory_is_given_in_turn_and_kept_for_who_waits_for_it() -> None:
    memory = DeclaredMemory(host_total=10 * GIB, host_used=2 * GIB)
    requests = [host(1, 6), host(2, 5), host(3, 1), cpu(4, 1), host(5, 1, gpu=True)]
    decisions = decide(requests, gpus(1), memory=memory)
    assert started(decisions) == {1: [], 4: []}
    assert decisions.host_first == 2
    assert decisions.waits == {
        2: "needs 5.0 GiB of host memory (memory.host): 2.0 of 10.0 GiB are left of the memory "
        "that jobs may declare",
        3: "needs 1.0 GiB of host memory (memory.host): waits behind job 2",
        5: "needs 1.0 GiB of host memory (memory.host): waits behind job 2",
    }


def test_jobs_of_the_other_kind_do_not_starve_the_first_of_host_memory() -> None:
    memory = DeclaredMemory(host_total=10 * GIB, host_used=6 * GIB)
    # Jobs of the CPU are looked at first: what a job of a GPU waits for is known from before.
    first = decide([host(1, 8, gpu=True), host(2, 1)], gpus(1), memory=memory)
    assert started(first) == {2: []}
    again = dataclasses.replace(memory, host_first=first.host_first)
    assert started(decide([host(1, 8, gpu=True), host(3, 1)], gpus(1), memory=again)) == {}
    freed = dataclasses.replace(again, host_used=0)
    assert started(decide([host(1, 8, gpu=True), host(3, 1)], gpus(1), memory=freed)) == {1: [0]}


def test_what_was_declared_under_a_higher_limit_runs_alone() -> None:
    memory = DeclaredMemory(host_total=4 * GIB)
    assert started(decide([host(1, 6), host(2, 1)], memory=memory)) == {1: []}


def test_what_others_have_of_the_host_is_not_given_away() -> None:
    memory = DeclaredMemory(host_total=100 * GIB, host_used=8 * GIB, host_free=10 * GIB)
    first = decide([host(1, 12), host(2, 3), cpu(3, 1)], memory=memory)
    assert set(started(first)) == {3}  # what running jobs have is kept for the first
    assert first.host_first == 1
    assert first.waits_for_host
    assert first.waits[1] == (
        "needs 12.0 GiB of host memory (memory.host): 10.0 GiB are free that running jobs "
        "will not need"
    )
    hopeless = decide([host(1, 30), host(2, 3), host(3, 8)], memory=memory)
    assert set(started(hopeless)) == {2}  # strangers have it: nothing is kept for the first
    assert hopeless.host_first in (None, 3)


def test_an_estimate_says_so_and_what_would_take_less() -> None:
    memory = DeclaredMemory(host_total=100 * GIB, host_free=10 * GIB)
    need = dataclasses.replace(
        host(1, 12).need, host_from="estimated", host_advice="zero.stage = 3"
    )
    decisions = decide([dataclasses.replace(host(1, 12), need=need)], memory=memory)
    assert decisions.waits[1] == (
        "needs 12.0 GiB of host memory (estimated): 10.0 GiB are free that running jobs "
        "will not need; zero.stage = 3 would need less; to declare another value, set memory.host"
    )


def test_a_job_goes_to_gpus_that_are_large_enough_where_there_are_enough_of_them() -> None:
    machine = seen(fake_gpu(0, total_gib=24), fake_gpu(1, total_gib=80), fake_gpu(2, total_gib=24))
    need = dataclasses.replace(wants(1, 1).need, least_gpu_bytes=40 * GIB)
    assert [gpu.index for gpu in usable_gpus(need, machine.gpus)[0]] == [1]
    two = dataclasses.replace(wants(1, 2).need, least_gpu_bytes=40 * GIB)
    assert [gpu.index for gpu in usable_gpus(two, machine.gpus)[0]] == [0, 1, 2]
