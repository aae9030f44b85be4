"""What users may have: the others go ahead of who has it."""

from __future__ import annotations

import dataclasses

import pytest

from tests.daemon.queue.scheduling.deciding import cpu, decide, gpus, lease, started, wants
from zerotoolsd.queue.scheduling.resource_requests import Request, ResourceNeed
from zerotoolsd.queue.scheduling.user_quota import UserUsage, UserUse, never_within, why_beyond
from zerotoolsd.users.user_limits import UserLimits

ANNA, BOB = 1000, 1001


def of(uid: int, request: Request) -> Request:
    return dataclasses.replace(request, uid=uid)


def limited(used: dict[int, UserUse] | None = None, **limits: int) -> UserUsage:
    return UserUsage(limits_of=lambda uid: UserLimits(**limits), used=used or {})


def test_a_user_at_the_limit_keeps_nothing_and_others_go_ahead() -> None:
    requests = [of(ANNA, wants(1, 2)), of(ANNA, wants(2, 2)), of(ANNA, wants(3, 1))]
    requests += [of(BOB, wants(4, 2)), of(BOB, wants(5, 1))]
    decisions = decide(requests, gpus(8), users=limited(max_gpus=3))
    assert started(decisions) == {1: [0, 1], 3: [2], 4: [3, 4], 5: [5]}
    assert (
        decisions.waits[2]
        == "needs 2 GPUs: running jobs of the same user use 2 of users.max_gpus = 3"
    )


def test_what_runs_already_counts() -> None:
    requests = [of(ANNA, wants(1, 1)), of(BOB, wants(2, 1))]
    used = {ANNA: UserUse(running=1, gpus=1)}
    decisions = decide(requests, gpus(3), leases=[lease(0)], users=limited(used, max_running=1))
    assert started(decisions) == {2: [1]}
    assert decisions.waits[1] == "waits for jobs of the same user: 1 of users.max_running = 1 run"


def test_jobs_on_the_cpu_count_among_those_that_run_and_by_their_ranks() -> None:
    requests = [of(ANNA, cpu(1, 2)), of(ANNA, cpu(2, 2)), of(ANNA, cpu(3, 1)), of(BOB, cpu(4, 3))]
    decisions = decide(requests, users=limited(max_cpu_ranks=3))
    assert list(started(decisions)) == [1, 3, 4]
    assert decisions.waits[2].endswith("use 2 of users.max_cpu_ranks = 3")
    decisions = decide(requests, users=limited(max_running=1))
    assert list(started(decisions)) == [1, 4]


def test_ten_thousand_jobs_of_one_user_at_the_limit_are_not_looked_at() -> None:
    looked: list[int] = []
    requests = [of(ANNA, wants(number, 1)) for number in range(1, 10_001)]
    decide(requests, gpus(8), users=limited(max_gpus=2), touch=looked.append)
    assert looked == [1, 2, 3]


@pytest.mark.parametrize(
    ("need", "limits", "why"),
    [
        (
            ResourceNeed(world_size=4, gpus=4),
            {"max_gpus": 3},
            "needs 4 GPUs, but users.max_gpus = 3; ask for less",
        ),
        (ResourceNeed(world_size=4, gpus=4), {"max_cpu_ranks": 3, "max_running": 1}, None),
        (ResourceNeed(world_size=4, gpus=None), {"max_cpu_ranks": 3}, "needs 4 CPU ranks, but"),
        (ResourceNeed(world_size=1, gpus=1), {"max_running": 0}, "users.max_running = 0 allows"),
        (ResourceNeed(world_size=4, gpus=None), {"max_gpus": 3}, None),
    ],
)
def test_a_job_that_is_too_large_for_its_user_is_said_to_be(
    need: ResourceNeed, limits: dict[str, int], why: str | None
) -> None:
    said = never_within(UserLimits(**limits), need)
    assert said is None if why is None else said is not None and said.startswith(why)
    assert why_beyond(UserLimits(), UserUse(running=99, gpus=99, cpu_ranks=99), need) is None
