"""Which priorities users may have."""

from __future__ import annotations

import pytest

from zerotools.core.errors import BadRequest
from zerotoolsd.config.config_tables import PriorityConfig
from zerotoolsd.dispatch.user_priority_ranges import PriorityClasses
from zerotoolsd.interface.api_types import Forbidden
from zerotoolsd.users.account import Account, UnknownAccount

CLASSES = {"anna": (-5, 3), "1003": (0, 0), "@lab": (-10, 5), "@big": (-2, 7), "*": (-10, -1)}


def find(uid: int) -> Account:
    if uid == 1009:
        raise UnknownAccount("uid 1009 is not a user of this machine")
    name = "anna" if uid == 1001 else f"user{uid}"
    return Account(uid=uid, gid=uid, groups=(uid,), name=name, home="/")


def groups(account: Account) -> frozenset[str]:
    return frozenset({"lab", "big"} if account.uid < 1005 else ())


@pytest.mark.parametrize(
    ("uid", "bounds"),
    [
        (1001, (-5, 3)),
        (1002, (-10, 7)),
        (1003, (0, 0)),
        (1006, (-10, -1)),
        (1009, (-10, -1)),
        (0, (-10, 10)),
    ],
)
def test_the_own_entry_counts_then_the_groups_then_that_of_everybody(
    uid: int, bounds: tuple[int, int]
) -> None:
    classes = PriorityClasses(PriorityConfig(classes=CLASSES), find, groups)
    assert classes.range_of(uid) == bounds
    assert classes.priority_for(uid, None) == min(max(0, bounds[0]), bounds[1])
    assert classes.priority_for(uid, bounds[1]) == bounds[1]


def test_what_is_above_the_class_is_refused_with_the_numbers() -> None:
    classes = PriorityClasses(PriorityConfig(classes=CLASSES), find, groups)
    with pytest.raises(
        Forbidden,
        match=r"priority = 4: \[priority.classes\] .* allows -5 to 3 for jobs",
    ):
        classes.priority_for(1001, 4)
    with pytest.raises(BadRequest, match=r"priority = 11: must be a whole number from -10 to 10"):
        classes.priority_for(1001, 11)


def test_without_classes_all_may_have_all() -> None:
    classes = PriorityClasses(PriorityConfig(), find, groups)
    assert classes.range_of(1009) == (-10, 10)
