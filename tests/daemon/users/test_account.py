"""Who a uid is."""

from __future__ import annotations

import os
import pwd
import threading
import time
from dataclasses import replace

import pytest

from tests.daemon.waiting import wait_for
from zerotoolsd.queue.fair_share import ShareWeights
from zerotoolsd.users.account import (
    FRESH_SECONDS,
    KEPT_SECONDS,
    MOST,
    Account,
    NameLookupTimeout,
    NameService,
    UnknownAccount,
    find_account,
    group_names,
)
from zerotoolsd.users.user_limits import LimitsOfUsers

ROOT = 0


def test_a_user_has_what_the_machine_lists() -> None:
    known = pwd.getpwuid(ROOT)
    found = find_account(ROOT)
    assert (found.uid, found.gid, found.name, found.home) == (0, known.pw_gid, "root", known.pw_dir)
    assert set(found.groups) == {known.pw_gid, *os.getgrouplist("root", known.pw_gid)}
    assert "root" in group_names(found)


@pytest.mark.parametrize("uid", [3999999999, 2**40])
def test_an_unknown_uid_is_refused_with_the_reason(uid: int) -> None:
    with pytest.raises(UnknownAccount, match=f"uid {uid} is not a user of this machine"):
        find_account(uid)


def test_a_group_without_a_name_is_left_out() -> None:
    account = Account(uid=7, gid=3999999999, groups=(3999999999,), name="seven", home="/")
    assert group_names(account) == frozenset()


ANNA = Account(uid=1000, gid=1000, groups=(1000,), name="anna", home="/home/anna")


class Directory:
    """A list of users that may fall silent."""

    def __init__(self) -> None:
        self.now = 0.0
        self.answers = threading.Event()
        self.answers.set()
        self.asked: list[int] = []
        self.gone = False

    def service(self, wait_seconds: float = 0.05) -> NameService:
        return NameService(self.find, self.groups, lambda: self.now, wait_seconds)

    def find(self, uid: int) -> Account:
        self.asked.append(uid)
        self.answers.wait(60)
        if self.gone or uid >= 2000:
            raise UnknownAccount(f"uid {uid} is not a user of this machine")
        return replace(ANNA, uid=uid)

    def groups(self, account: Account) -> frozenset[str]:
        self.answers.wait(60)
        return frozenset({"lab"})


@pytest.fixture
def directory() -> Directory:
    return Directory()


def test_where_it_answers_each_question_is_asked(directory: Directory) -> None:
    names = directory.service(wait_seconds=20)
    assert names.find(1000) == ANNA
    assert names.find(1000) == ANNA
    assert names.groups(ANNA) == {"lab"}
    with pytest.raises(UnknownAccount, match="uid 2000 is not a user"):
        names.find(2000)
    directory.gone = True  # a user that was removed is gone at once
    with pytest.raises(UnknownAccount, match="uid 1000 is not a user"):
        names.find(1000)
    assert directory.asked == [1000, 1000, 2000, 1000]


def test_while_it_is_silent_what_was_known_counts_for_an_hour(directory: Directory) -> None:
    names = directory.service(wait_seconds=20)
    names.find(1000)
    names = _quick(names)
    directory.answers.clear()
    assert names.find(1000) == ANNA
    with pytest.raises(NameLookupTimeout, match="does not answer"):
        names.find(1001)
    directory.now = KEPT_SECONDS + 1
    with pytest.raises(NameLookupTimeout):
        names.find(1000)
    directory.answers.set()
    wait_for(lambda: _answered(names, 1001), "an answer")
    assert names.find(1001).uid == 1001


def _quick(names: NameService) -> NameService:
    names._wait_seconds = 0.02
    return names


def _answered(names: NameService, uid: int) -> bool:
    try:
        return names.find(uid).uid == uid
    except NameLookupTimeout:
        return False


def test_nobody_waits_twice_and_few_threads_hang(directory: Directory) -> None:
    names = directory.service(wait_seconds=0.02)
    directory.answers.clear()
    before = threading.active_count()
    for uid in range(1000, 1000 + 5 * MOST):
        for _ in range(3):
            with pytest.raises(NameLookupTimeout):
                names.find(uid)
    assert len(directory.asked) <= MOST
    assert threading.active_count() <= before + MOST
    names._wait_seconds = 3600.0  # it would be seen: an answer is due, so nobody waits for another
    with pytest.raises(NameLookupTimeout):
        names.find(5000)
    directory.answers.set()
    wait_for(lambda: threading.active_count() <= before, "the threads to end")


def test_limits_and_weights_are_not_taken_from_silence(directory: Directory) -> None:
    tables = {"anna": {"max_running": 1}, "@lab": {"max_queued": 7}}
    names = _quick(directory.service(wait_seconds=20))
    directory.answers.clear()
    limits = LimitsOfUsers({}, tables, find=names.find, groups=names.groups, own=0)
    weights = ShareWeights({"anna": 3.0}, find=names.find, groups=names.groups)
    assert (limits.of(1000).max_running, weights.of(1000)) == (None, 1.0)
    directory.answers.set()
    wait_for(lambda: weights.of(1000) == 3.0, "her weight to be known")
    wait_for(lambda: limits.of(1000).max_running == 1, "her limits to be known")
    assert limits.of(1000).max_queued == 7


def test_a_lookup_that_fails_oddly_is_an_unknown_user() -> None:
    def broken(uid: int) -> Account:
        raise RuntimeError("odd")

    with pytest.raises(UnknownAccount, match="odd"):
        NameService(find=broken, wait_seconds=20).find(1)


def test_a_name_is_asked_for_once_a_minute_and_not_waited_for() -> None:
    asked, now, silent = list[int](), [0.0], threading.Event()

    def find(uid: int) -> Account:
        asked.append(uid)
        if uid == 1002:
            silent.wait(10)
        if uid == 1003:
            raise UnknownAccount("no")
        return Account(uid=uid, gid=1, groups=(), name=f"user{uid}", home="/")

    service = NameService(find, clock=lambda: now[0])
    try:
        assert [service.name(1001) for _ in range(3)] == ["user1001"] * 3
        assert [service.name(1003) for _ in range(3)] == [None] * 3
        assert asked == [1001, 1003]
        now[0] += FRESH_SECONDS + 1
        assert service.name(1001) == "user1001"
        assert asked == [1001, 1003, 1001]
        began = time.monotonic()
        assert [service.name(1002) for _ in range(20)] == [None] * 20
        assert time.monotonic() - began < 1
    finally:
        silent.set()
