"""The rules, each by a row."""

from __future__ import annotations

import pytest

from zerotoolsd.users.rights import (
    BEGINS,
    OVERFLOW_UID,
    Access,
    Action,
    Allowed,
    Caller,
    Owner,
    Reach,
    Rights,
)

OWN, ANNA, BOB = 900, 1000, 1001
anna = Caller(uid=ANNA, name="anna", groups=frozenset({"lab"}))
bob = Caller(uid=BOB, name="bob", groups=frozenset({"lab", "admins"}))
rights = Rights(own=OWN)


@pytest.mark.parametrize("action", Action)
def test_what_may_be_done_with_the_job_of_another(action: Action) -> None:
    expected = {
        Reach.NOBODY: Access.ALLOWED,
        Reach.USERS: Access.ALLOWED,
        Reach.GLANCE: Access.MASKED,
        Reach.OWN: Access.REFUSED,
    }[action.reach]
    assert rights.decide(anna, action, Owner(BOB)).access is expected
    assert rights.decide(anna, action, Owner(ANNA)).access is Access.ALLOWED
    for uid in (0, OWN):
        assert rights.decide(Caller(uid=uid), action, Owner(BOB)).access is Access.ALLOWED


def test_a_refusal_says_whose_it_is_and_who_may() -> None:
    refused = rights.decide(anna, Action.CANCEL, Owner(BOB, "bob"), 7)
    assert refused.why == (
        "job 7 belongs to bob (uid 1001), and you are anna (uid 1000): only its owner and "
        "administrators may cancel it"
    )
    assert "belongs to uid 1001, and" in rights.decide(anna, Action.CANCEL, Owner(BOB), 7).why
    assert rights.decide(anna, Action.CANCEL).why == "only administrators may cancel it"


@pytest.mark.parametrize(
    ("administrators", "who"),
    [
        (("bob",), {BOB}),
        ((1001,), {BOB}),
        (("1001",), {BOB}),
        (("01001x", "1001 ", "-1001"), set()),
        (("@admins",), {BOB}),
        (("@lab",), {ANNA, BOB}),
        (("admins", "@bob", "@", "", "None", "@None"), set()),
        ((), set()),
    ],
)
def test_administrators_are_named_by_name_uid_and_group(
    administrators: tuple[str | int, ...], who: set[int]
) -> None:
    found = Rights(administrators, own=OWN)
    assert {each.uid for each in (anna, bob) if found.is_administrator(each)} == who
    nameless = Caller(uid=5)
    assert not found.is_administrator(nameless)


def test_users_that_nobody_can_tell_apart_have_no_jobs() -> None:
    unknown = Caller(uid=OVERFLOW_UID, name="nobody", groups=frozenset({"nogroup"}))
    all_of_them = Rights(("nobody", "@nogroup", OVERFLOW_UID), own=OWN)
    assert not all_of_them.is_administrator(unknown)
    assert "no" in all_of_them.decide(unknown, Action.SUBMIT).why
    assert all_of_them.decide(unknown, Action.CANCEL, Owner(OVERFLOW_UID)).access is Access.REFUSED
    assert all_of_them.decide(unknown, Action.LIST).access is Access.MASKED


@pytest.mark.parametrize("allow", [("anna",), (ANNA,), ("1000",), ("@staff", "@lab"), "all", None])
def test_those_whom_the_administrator_lets_in_have_jobs(allow: Allowed) -> None:
    found = Rights(own=OWN, allow=allow)
    for action in BEGINS:
        assert found.decide(anna, action, Owner(ANNA)).access is Access.ALLOWED


@pytest.mark.parametrize("allow", [(), ("bob",), ("@staff",), ("10001",), ("lab", "@anna")])
def test_others_begin_nothing_and_keep_what_they_have(allow: Allowed) -> None:
    found = Rights(own=OWN, allow=allow)
    for action in BEGINS:
        assert "users.allow" in found.decide(anna, action, Owner(ANNA)).why
        assert found.decide(Caller(uid=OWN), action, Owner(OWN)).access is Access.ALLOWED
    assert found.decide(anna, Action.CANCEL, Owner(ANNA)).access is Access.ALLOWED
    assert found.decide(anna, Action.READ_LOGS, Owner(ANNA)).access is Access.ALLOWED
