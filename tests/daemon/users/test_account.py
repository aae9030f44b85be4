"""Who a uid is."""

from __future__ import annotations

import os
import pwd

import pytest

from zerotoolsd.users.account import Account, UnknownAccount, account_of, find_account, group_names

ROOT = 0


def test_a_user_has_what_the_machine_lists() -> None:
    known = pwd.getpwuid(ROOT)
    found = find_account(ROOT)
    assert (found.uid, found.gid, found.name, found.home) == (0, known.pw_gid, "root", known.pw_dir)
    assert set(found.groups) == {known.pw_gid, *os.getgrouplist("root", known.pw_gid)}
    assert "root" in group_names(found)
    assert account_of(found.to_json()) == found


@pytest.mark.parametrize("uid", [3999999999, 2**40])
def test_an_unknown_uid_is_refused_with_the_reason(uid: int) -> None:
    with pytest.raises(UnknownAccount, match=f"uid {uid} is not a user of this machine"):
        find_account(uid)


def test_a_group_without_a_name_is_left_out() -> None:
    account = Account(uid=7, gid=3999999999, groups=(3999999999,), name="seven", home="/")
    assert group_names(account) == frozenset()
