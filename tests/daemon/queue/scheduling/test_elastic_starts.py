"""An elastic job starts with as many ranks as there are, of those that it may have."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.daemon.queue.scheduling.deciding import LIMITS, decide, gpus, lease, started, wants
from zerotools.sensors.snapshot import Snapshot
from zerotoolsd.queue.scheduling.memory_left_for_jobs import DeclaredMemory
from zerotoolsd.queue.scheduling.resource_requests import Request, ResourceNeed
from zerotoolsd.queue.scheduling.user_quota import UserUsage, UserUse
from zerotoolsd.users.user_limits import UserLimits

GIB = 2**30


def elastic(job_id: int, *sizes: int, cpu: bool = False, share: int | None = None) -> Request:
    return Request(
        job_id=job_id,
        need=ResourceNeed(
            world_size=sizes[0], gpus=None if cpu else sizes[0], sizes=sizes, gpu_bytes=share
        ),
    )


def with_leases(count: int, taken: int) -> tuple[Snapshot, list[object]]:
    return gpus(count), [lease(index) for index in range(taken)]


def test_it_takes_the_largest_size_that_is_free() -> None:
    for taken, size in ((0, 6), (1, 6), (2, 6), (3, 4), (5, 2), (6, 2)):
        machine, leases = with_leases(8, taken)
        decisions = decide([elastic(1, 2, 4, 6)], machine, leases=leases)
        assert len(started(decisions)[1]) == size
        assert decisions.starts[0].size == size


def test_it_waits_for_its_smallest_size_alone() -> None:
    machine, leases = with_leases(8, 7)
    decisions = decide([elastic(1, 2, 4, 8), wants(2, 1)], machine, leases=leases)
    assert started(decisions) == {}
    assert decisions.waits[1].startswith("needs 2 GPUs: 1 of 8 free")
    assert "GPU 7: kept for job 1" in decisions.waits[2]


def test_ranks_of_the_cpu_are_given_alike() -> None:
    decisions = decide([elastic(1, 1, 2, 4, 8, cpu=True)], cpu_ranks_used=3)
    assert [start.size for start in decisions.starts] == [4]
    alone = decide([elastic(1, 9, 10, cpu=True)])  # more than the limit was: it runs alone
    assert [start.size for start in alone.starts] == [9]


def test_shares_of_gpus_are_given_alike() -> None:
    memory = DeclaredMemory(context=GIB)
    decisions = decide([elastic(1, 1, 2, 4, share=4 * GIB)], gpus(3), memory=memory)
    assert started(decisions) == {1: [0, 1]}


def test_the_limits_of_its_user_bound_it() -> None:
    users = UserUsage(limits_of=lambda uid: UserLimits(max_gpus=5), used={0: UserUse(gpus=1)})
    decisions = decide([elastic(1, 2, 4, 8)], gpus(8), users=users)
    assert [start.size for start in decisions.starts] == [4]
    users = UserUsage(limits_of=lambda uid: UserLimits(max_cpu_ranks=3))
    decisions = decide([elastic(1, 1, 2, 4, cpu=True)], users=users)
    assert [start.size for start in decisions.starts] == [2]
    second = decide([elastic(1, 1, 2, cpu=True), elastic(2, 1, 2, cpu=True)], users=users)
    assert [start.size for start in second.starts] == [2, 1]


several = st.lists(st.integers(1, 9), min_size=1, max_size=5, unique=True).map(
    lambda each: tuple(sorted(each))
)


@given(
    st.lists(st.tuples(several, st.booleans()), max_size=8), st.integers(0, 9), st.integers(0, 9)
)
def test_never_fewer_never_more_and_only_its_sizes(
    jobs: list[tuple[tuple[int, ...], bool]], taken: int, used: int
) -> None:
    requests = [elastic(number, *sizes, cpu=cpu) for number, (sizes, cpu) in enumerate(jobs, 1)]
    machine, leases = with_leases(9, taken)
    decisions = decide(requests, machine, leases=leases, cpu_ranks_used=used)
    given_gpus, ranks = 0, used
    for start in decisions.starts:
        need = requests[start.job_id - 1].need
        size = start.size or need.world_size
        assert size in need.sizes
        if need.gpus is None:
            ranks += size
        else:
            assert len(start.gpu_uuids) == size
            given_gpus += size
    assert given_gpus <= 9 - taken
    assert ranks <= max(LIMITS.cpu_ranks, used) or len(decisions.starts) == 1
