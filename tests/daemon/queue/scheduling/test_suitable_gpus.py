"""Which GPUs may be given, and what is said of the others."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from harness.fake_gpu_probe import fake_gpu
from tests.daemon.queue.scheduling.deciding import (
    BF16,
    LIMITS,
    cpu,
    decide,
    gpus,
    lease,
    seen,
    started,
    wants,
)
from zerotools.sensors.excluded_and_preferred_gpus import GpuChoice
from zerotools.sensors.snapshot import GpuProcess, Snapshot
from zerotoolsd.config.config_tables import LimitsConfig
from zerotoolsd.queue.scheduling.resource_requests import CapabilityNeed, Request, ResourceNeed
from zerotoolsd.queue.scheduling.suitable_gpus import merged_reasons, why_impossible


def test_a_leased_gpu_is_not_given_and_the_wait_says_who_has_it() -> None:
    decisions = decide([wants(1, 2)], gpus(2), leases=[lease(0)])
    assert started(decisions) == {}
    assert decisions.waits == {1: "needs 2 GPUs: 1 of 2 free: GPU 0: job 9"}


def test_a_gpu_that_strangers_use_is_not_given_and_the_wait_has_the_numbers() -> None:
    busy = fake_gpu(0, used_gib=56.6, processes=[GpuProcess(812, None)])
    decisions = decide([wants(1, 1)], seen(busy))
    assert decisions.waits == {
        1: "needs 1 GPU: 0 of 1 free: GPU 0: 56.6 of 80.0 GiB in use by pid 812, not a job "
        "of this daemon (allowed: limits.foreign_memory_bytes = 4.0 GiB)"
    }


def test_a_little_foreign_memory_is_allowed() -> None:
    def opens(limits: LimitsConfig = LIMITS, **gpu: Any) -> bool:
        return started(decide([wants(1, 1)], seen(fake_gpu(0, **gpu)), limits=limits)) == {1: [0]}

    assert opens(used_gib=4.0)
    assert not opens(used_gib=4.1)
    assert opens(used_gib=0.5, total_gib=8)
    assert not opens(used_gib=0.6, total_gib=8), "5 % of it are 0.4 GiB, and 0.5 is the least"
    set_by_owner = dataclasses.replace(LIMITS, foreign_memory_bytes=2**30)
    assert opens(set_by_owner, used_gib=1.0)
    assert not opens(set_by_owner, used_gib=1.1)


def test_a_desktop_closes_no_gpu() -> None:
    screen = [GpuProcess(812, 900 << 20, graphics=True), GpuProcess(813, 2 << 30, graphics=True)]
    card = fake_gpu(0, total_gib=8, used_gib=3.3, processes=screen)
    assert started(decide([wants(1, 1)], seen(card))) == {1: [0]}
    trains = [*screen, GpuProcess(99, 1 << 30)]
    busy = fake_gpu(0, total_gib=8, used_gib=4.3, processes=trains)
    why = decide([wants(1, 1)], seen(busy)).waits[1]
    assert "GPU 0: 1.4 of 8.0 GiB in use by pid 99, not a job of this daemon (allowed: lim" in why


def test_a_large_job_gets_the_card_without_a_desktop() -> None:
    screen = [GpuProcess(812, 2 << 30, graphics=True)]
    cards = seen(fake_gpu(0, total_gib=24, used_gib=2, processes=screen), fake_gpu(1, total_gib=24))
    request = wants(1, 1)
    large = dataclasses.replace(request.need, least_gpu_bytes=23 << 30)
    assert started(decide([dataclasses.replace(request, need=large)], cards)) == {1: [1]}


def test_the_same_of_several_gpus_is_said_once() -> None:
    said = {0: "job 1 (anna)", 1: "job 1 (anna)", 2: "job 1 (anna)", 3: "job 2 (bob)", 5: "x"}
    assert merged_reasons(said) == "GPUs 0-2: job 1 (anna); GPU 3: job 2 (bob); GPU 5: x"
    assert merged_reasons({0: "x", 2: "x", 3: "x"}) == "GPUs 0, 2-3: x"


def test_a_gpu_that_the_owner_excludes_is_given_to_nobody() -> None:
    machine = GpuChoice(exclude=(0, "fake h100 X", "GPU-fake-2")).of(gpus(4))
    assert started(decide([wants(1, 2)], machine)) == {1: [1, 3]}
    assert "needs 3 GPUs: 2 of 2 free" in decide([wants(1, 3)], machine).waits[1]
    named = decide([wants(1, (0,))], machine)
    assert "GPU 0: excluded by gpus.exclude of the daemon's" in named.waits[1]
    refused = "gpus: the job needs 3 GPUs, but can use only 2 of 4: GPUs 0, 2: excluded by"
    assert str(why_impossible(wants(1, 3).need, machine, LIMITS)).startswith(refused)
    assert why_impossible(wants(1, 2).need, machine, LIMITS) is None
    whole = GpuChoice(exclude=("Fake H100",)).of(gpus(2))
    assert "can use only 0 of 2" in str(why_impossible(wants(1, 1).need, whole, LIMITS))


def test_gpus_that_the_owner_prefers_are_given_first() -> None:
    machine = GpuChoice(prefer=("GPU-fake-3", 2)).of(gpus(4))
    one_by_one = decide([wants(1, 1), wants(2, 1), wants(3, 1)], machine)
    assert started(one_by_one) == {1: [3], 2: [2], 3: [0]}
    assert started(decide([wants(1, 3)], machine)) == {1: [0, 2, 3]}
    assert started(decide([wants(1, (0, 1))], machine)) == {1: [0, 1]}


def test_a_gpu_that_a_process_outlived_its_job_on_is_fenced() -> None:
    decisions = decide([wants(1, 1)], gpus(1), leases=[lease(0, held_by="pid 77")])
    assert "GPU 0: in use by pid 77, which job 9 left behind" in decisions.waits[1]


def test_a_gpu_on_which_nothing_more_is_placed_says_why() -> None:
    closed = {"GPU-fake-0": "gets no more jobs while its memory runs out"}
    decisions = decide([wants(1, 2)], gpus(2), leases=[lease(0)], closed=closed)
    assert decisions.waits == {
        1: "needs 2 GPUs: 1 of 2 free: GPU 0: gets no more jobs while its memory runs out"
    }
    outlived = decide([wants(1, 1)], gpus(1), leases=[lease(0, held_by="pid 7")], closed=closed)
    assert "GPU 0: in use by pid 7, which job 9 left behind" in outlived.waits[1]


def test_a_gpu_with_an_error_is_not_given() -> None:
    decisions = decide([wants(1, 1)], seen(fake_gpu(0, used_gib=0, error="GPU is lost")))
    assert "GPU 0: cannot be relied on (GPU is lost)" in decisions.waits[1]


@pytest.mark.parametrize(
    ("snapshot", "why"),
    [
        (None, "the GPUs were not measured yet"),
        (seen(fake_gpu(0), error="NVML does not answer"), "NVML does not answer"),
        (seen(fake_gpu(0), taken_at=0.0), "the GPUs were last measured 100 s ago"),
    ],
)
def test_p7_without_a_fresh_view_of_the_gpus_none_is_given(
    snapshot: Snapshot | None, why: str
) -> None:
    decisions = decide([wants(1, 1), cpu(2, 1)], snapshot)
    assert started(decisions) == {2: []}
    assert decisions.waits == {1: f"waits until the state of the GPUs is known: {why}"}


def test_a_gpu_that_is_not_there_is_named() -> None:
    decisions = decide([wants(1, (7,))], gpus(2))
    assert decisions.waits[1] == "needs GPU 7, which does not exist; this machine has GPUs 0, 1"


def test_one_gpu_named_twice_is_not_two() -> None:
    decisions = decide([wants(1, (0, "GPU-fake-0"))], gpus(2))
    assert "names the same GPU by its index and by its UUID" in decisions.waits[1]


def test_a_request_that_can_never_be_met_is_told_apart() -> None:
    assert why_impossible(cpu(1, 8).need, None, LIMITS) is None
    assert why_impossible(cpu(1, 9).need, None, LIMITS) == (
        "ranks = 9: limits.cpu_ranks of this daemon is 8 (its cores, unless its configuration sets "
        "another number); ask for fewer ranks, or set limits.cpu_ranks and restart the daemon"
    )
    assert why_impossible(wants(1, 2).need, gpus(2), LIMITS) is None
    assert (
        why_impossible(wants(1, 3).need, gpus(2), LIMITS)
        == "gpus = 3: this machine has GPUs 0, 1; set gpus to at most 2"
    )
    assert "which does not exist" in str(why_impossible(wants(1, (5,)).need, gpus(2), LIMITS))
    why = why_impossible(wants(1, 1).need, seen(error="no NVML: x"), LIMITS)
    assert why is not None
    assert "shows none: no NVML: x" in why


def test_p7_a_job_is_accepted_while_nvml_is_lost_if_its_gpus_were_seen() -> None:
    assert why_impossible(wants(1, 1).need, seen(fake_gpu(0), error="lost"), LIMITS) is None


UNMEASURED = "the driver does not report its memory (NVML: Not Supported)"
USE = LimitsConfig(use_unmeasured_gpus=True)


def test_a_gpu_that_is_not_measured_is_used_if_the_owner_says_so() -> None:
    integrated = dataclasses.replace(
        fake_gpu(0, unmeasured=UNMEASURED),
        memory_used_bytes=None,
        memory_total_bytes=None,
        memory_free_bytes=None,
    )
    decisions = decide([wants(1, 1)], seen(integrated))
    assert started(decisions) == {}
    sentence = (
        f"GPU 0: {UNMEASURED}, so nothing shows whether others use it; to use it anyway, set "
        "limits.use_unmeasured_gpus = true in the daemon's configuration"
    )
    assert sentence in decisions.waits[1]
    assert why_impossible(wants(1, 1).need, seen(integrated), LIMITS) == (
        f"gpus: the job needs 1 GPU, but can use only 0 of 1: {sentence}"
    )
    assert why_impossible(wants(1, 1).need, seen(integrated), USE) is None
    assert started(decide([wants(1, 1), wants(2, 1)], seen(integrated), limits=USE)) == {1: [0]}
    held = decide([wants(1, 1)], seen(integrated), limits=USE, leases=[lease(0)])
    assert "GPU 0: job 9" in held.waits[1]


def test_one_of_two_gpus_that_is_not_measured_leaves_the_other() -> None:
    both = seen(fake_gpu(0, unmeasured=UNMEASURED), fake_gpu(1, used_gib=0))
    assert started(decide([wants(1, 1)], both)) == {1: [1]}
    assert why_impossible(wants(1, 1).need, both, LIMITS) is None
    assert "can use only 1 of 2: GPU 0: the driver" in str(
        why_impossible(wants(1, 2).need, both, LIMITS)
    )
    assert "can use only 0 of 1: GPU 0: the driver" in str(
        why_impossible(wants(1, (0,)).need, both, LIMITS)
    )


def test_a_known_use_counts_where_only_the_processes_are_not_told() -> None:
    virtual = fake_gpu(0, used_gib=20, unmeasured="the driver does not report its processes")
    decisions = decide([wants(1, 1)], seen(virtual), limits=USE)
    assert "20.0 of 80.0 GiB in use by processes of no job" in decisions.waits[1]


def test_mig_instances_are_named_and_refused() -> None:
    why = "it is divided into MIG instances (MIG-77 (1g.5gb)), on which zerotools does not train"
    divided = fake_gpu(0, error=why, mig_instances=["MIG-77 (1g.5gb)"])
    both = seen(divided, fake_gpu(1, used_gib=0))
    assert started(decide([wants(1, 1)], both)) == {1: [1]}
    assert why_impossible(wants(1, 2).need, both, LIMITS) == (
        f"gpus: the job needs 2 GPUs, but can use only 1 of 2: GPU 0: {why}"
    )
    assert why_impossible(wants(1, ("MIG-77",)).need, both, USE) == (
        "gpus: the job needs GPU MIG-77: that is a MIG instance of GPU 0, but zerotools trains "
        "only on whole GPUs"
    )
    assert f"GPU 0: {why}" in decide([wants(1, 2)], both).waits[1]


def capable(job_id: int, gpus: int | tuple[int | str, ...], need: CapabilityNeed) -> Request:
    size = gpus if isinstance(gpus, int) else len(gpus)
    return Request(job_id=job_id, need=ResourceNeed(world_size=size, gpus=gpus, capability=need))


def test_gpus_that_cannot_compute_as_the_job_wants_are_refused_with_what_to_set() -> None:
    old = [fake_gpu(index, used_gib=0, compute_capability=(7, 0)) for index in range(2)]
    unknown = fake_gpu(2, used_gib=0, compute_capability=None)
    new = fake_gpu(3, used_gib=0)
    assert why_impossible(capable(1, 1, BF16).need, seen(*old), LIMITS) == (
        "gpus: the job needs 1 GPU, but can use only 0 of 2: GPUs 0-1: Fake H100 has compute "
        'capability 7.0, but train.precision = "bf16" needs 8.0; set fp16'
    )
    assert str(why_impossible(capable(1, (0,), BF16).need, seen(*old, new), LIMITS)).endswith(
        "set fp16"
    )
    for able in (unknown, new):
        assert why_impossible(capable(1, 1, BF16).need, seen(*old, able), LIMITS) is None
    assert why_impossible(wants(1, 2).need, seen(*old), LIMITS) is None


def test_a_job_is_given_gpus_that_compute_as_it_wants() -> None:
    old, new = (
        fake_gpu(index, used_gib=0, compute_capability=capability)
        for index, capability in enumerate([(7, 5), (8, 0)])
    )
    for request, uuids in (
        (capable(1, 1, BF16), ("GPU-fake-1",)),
        (wants(1, 1), ("GPU-fake-0",)),
        # Accepted before this was looked at: it goes on.
        (capable(1, 2, BF16), ("GPU-fake-0", "GPU-fake-1")),
    ):
        found = decide([request], seen(old, new))
        assert [start.gpu_uuids for start in found.starts] == [uuids]
