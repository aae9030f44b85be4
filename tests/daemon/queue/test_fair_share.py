"""Which weight a user has."""

from __future__ import annotations

import dataclasses

import pytest

from tests.daemon.queue.scheduling.deciding import LIMITS, started, wants
from tests.daemon.queue.scheduling.deciding import gpus as machine
from zerotoolsd.queue.fair_share import DecayedUse, ShareWeights, fair_share_factor, ranks_of
from zerotoolsd.queue.scheduling.pass_input import PassInput
from zerotoolsd.queue.scheduling.pending_queue import PendingQueue
from zerotoolsd.queue.scheduling.resource_requests import Request
from zerotoolsd.queue.scheduling.scheduler import PassDecisions, run_pass
from zerotoolsd.users.account import Account, UnknownAccount

NAMES = {7: "anna", 8: "ben", 9: "carla"}


def find(uid: int) -> Account:
    if uid not in NAMES:
        raise UnknownAccount(f"uid {uid}")
    return Account(uid=uid, gid=1, groups=(1,), name=NAMES[uid], home="/")


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ({}, [1, 1, 1, 1]),
        ({"*": 3.0}, [3, 3, 3, 3]),
        ({"anna": 2.0, "@lab": 5.0, "@guests": 0.5}, [2, 5, 1, 1]),
        ({"7": 4.0, "10": 0.25, "*": 2.0}, [4, 2, 2, 0.25]),
    ],
)
def test_the_own_entry_counts_before_those_of_groups_and_of_everybody(
    weights: dict[str, float], expected: list[float]
) -> None:
    groups = {"anna": {"lab"}, "ben": {"lab", "guests"}, "carla": set[str]()}
    found = ShareWeights(weights, find, lambda account: frozenset(groups[account.name]))
    assert [found.of(uid) for uid in (7, 8, 9, 10)] == expected


DAY = 86400.0


def test_what_was_used_counts_half_after_a_half_life_in_whatever_order_it_is_told() -> None:
    use = DecayedUse(DAY)
    use.add(1, 8.0, 0.0)
    assert [use.of(1, day * DAY) for day in (0, 1, 3)] == [8.0, 4.0, 1.0]
    use.add(1, 2.0, DAY)
    late = DecayedUse(DAY)
    late.add(1, 2.0, DAY)
    late.add(1, 8.0, 0.0)
    assert use.of(1, 2 * DAY) == late.of(1, 2 * DAY) == pytest.approx(3.0)
    assert (use.of(2, DAY), use.uids) == (0.0, [1])


def test_ranks_are_by_use_for_the_weight_and_equal_where_that_is() -> None:
    weights = {1: 1.0, 2: 2.0, 3: 1.0, 4: 1.0}
    assert ranks_of([1, 2, 3], {1: 10.0, 2: 20.0}, weights.__getitem__) == {1: 1, 2: 1, 3: 0}
    assert ranks_of([1, 2, 4], {1: 11.0, 2: 20.0, 4: 9.0}, weights.__getitem__) == {
        4: 0,
        2: 1,
        1: 2,
    }


def test_the_factor_is_half_at_the_share() -> None:
    assert [fair_share_factor(part, 0.25) for part in (0.0, 0.25, 0.5)] == [1.0, 0.5, 0.25]


def of(uid: int, job_id: int, gpus: int = 1, priority: int = 0) -> Request:
    return dataclasses.replace(wants(job_id, gpus), uid=uid, priority=priority)


def decide(requests: list[Request], count: int, ranks: dict[int, int]) -> PassDecisions:
    pending = PendingQueue(requests)
    pending.ranks = ranks
    given = PassInput(
        now=100.0, snapshot=machine(count), leases=(), cpu_ranks_used=0, limits=LIMITS
    )
    return run_pass(pending, given)


def test_the_priority_counts_first_then_the_share_then_the_age() -> None:
    requests = [of(1, 1), of(1, 2), of(2, 3), of(2, 4), of(1, 5, priority=3)]
    assert list(started(decide(requests, 3, {1: 1, 2: 0}))) == [5, 3, 4]
    assert list(started(decide(requests, 3, {}))) == [5, 1, 2]


def test_what_is_kept_for_who_goes_first_is_not_given_to_an_older_job_of_another() -> None:
    decisions = decide([of(1, 1), of(2, 2, gpus=2), of(1, 3)], 1, {1: 1, 2: 0})
    assert started(decisions) == {1: [0]}  # two GPUs are not there, and nobody knows when
    again = decide([of(1, 1), of(2, 2), of(3, 3)], 1, {1: 2, 2: 1, 3: 0})
    assert started(again) == {3: [0]}
    assert "GPU 0: job 3" in again.waits[1]
    assert "GPU 0: job 3" in again.waits[2]
