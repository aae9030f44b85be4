"""Which weight a user has."""

from __future__ import annotations

import pytest

from zerotoolsd.queue.fair_share.share_weights import ShareWeights
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
