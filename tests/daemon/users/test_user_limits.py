from __future__ import annotations

import pytest

from zerotoolsd.users.account import Account, UnknownAccount
from zerotoolsd.users.user_limits import (
    KNOWN_SECONDS,
    OTHERS_QUEUE_BYTES,
    LimitsOfUsers,
    UserLimits,
    limits_in,
    why_queued_too_much,
)

OWN, ANNA, BOB = 900, 1000, 1001
NAMES = {ANNA: "anna", BOB: "bob"}


class Lists:
    """The machine's lists of users and groups."""

    def __init__(self) -> None:
        self.now, self.asked = 0.0, 0
        self.groups = {ANNA: {"lab"}, BOB: {"lab", "big"}}

    def find(self, uid: int) -> Account:
        self.asked += 1
        if uid not in NAMES:
            raise UnknownAccount(f"uid {uid}")
        return Account(uid=uid, gid=uid, groups=(), name=NAMES[uid], home="/")

    def group_names(self, account: Account) -> frozenset[str]:
        return frozenset(self.groups[account.uid])


def limits(lists: Lists, **tables: dict[str, int | str]) -> LimitsOfUsers:
    named = {name.replace("at_", "@"): table for name, table in tables.items() if name != "all"}
    return LimitsOfUsers(
        tables.get("all", {}), named, OWN, lists.find, lists.group_names, lambda: lists.now
    )


def test_the_own_table_counts_before_those_of_groups_and_of_all() -> None:
    lists = Lists()
    found = limits(
        lists,
        all={"max_gpus": 1, "max_running": 9, "queue_bytes": "1MiB"},
        at_lab={"max_gpus": 2, "max_queued": 5},
        at_big={"max_gpus": 8, "max_queued": 3},
        anna={"max_gpus": 0},
    )
    assert found.of(ANNA) == UserLimits(max_gpus=0, max_running=9, max_queued=5, queue_bytes=2**20)
    assert found.of(BOB) == UserLimits(max_gpus=8, max_running=9, max_queued=5, queue_bytes=2**20)
    assert found.of(7) == UserLimits(max_gpus=1, max_running=9, queue_bytes=2**20)
    assert found.bound_running
    before = lists.asked
    found.of(ANNA)
    assert lists.asked == before  # what was found is taken for a while
    lists.groups[ANNA], lists.now = set(), KNOWN_SECONDS
    assert found.of(ANNA).max_queued is None


def test_where_nothing_is_set_others_cannot_fill_the_queue() -> None:
    found = limits(Lists())
    assert found.of(OWN) == found.of(0) == UserLimits()
    assert found.of(ANNA) == UserLimits(queue_bytes=OTHERS_QUEUE_BYTES)
    assert not found.bound_running
    assert limits(Lists(), all={"queue_bytes": 5}).of(OWN) == UserLimits(queue_bytes=5)


@pytest.mark.parametrize(
    "table", [{"max_gpu": 1}, {"max_gpus": "2"}, {"max_gpus": -1}, {"queue_bytes": "x"}]
)
def test_tables_that_are_none(table: dict[str, int | str]) -> None:
    with pytest.raises(ValueError, match=next(iter(table)).split("_", maxsplit=1)[0]):
        limits_in(table)


def test_a_refusal_has_the_numbers() -> None:
    some = UserLimits(max_queued=3, queue_bytes=100)
    assert why_queued_too_much(some, queued=2, queue_bytes=50, new_bytes=50) is None
    said = why_queued_too_much(some, queued=3, queue_bytes=0, new_bytes=1)
    assert said is not None
    assert said.startswith("you have 3 queued jobs, but users.max_queued of the daemon's")
    said = why_queued_too_much(some, queued=2, queue_bytes=51, new_bytes=50)
    assert said is not None
    assert said.startswith("your jobs take 51 bytes of the queue and this one takes 50")
