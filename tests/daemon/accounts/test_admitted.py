"""Whom `[users] allow` lets in."""

from __future__ import annotations

import pytest

from zerotoolsd.accounts.account import Account
from zerotoolsd.accounts.admitted import ALL, Allowed, is_admitted

ANNA = Account(uid=1001, gid=100, groups=(100, 44), name="anna", home="/home/anna")


@pytest.mark.parametrize(
    ("allow", "expected"),
    [
        (None, True),
        (ALL, True),
        (("anna",), True),
        (("bert", 1001), True),
        (("@gpu",), True),
        (("@staff", "bert", 1002), False),
        (("@anna", "gpu"), False),
        ((), False),
        ("anna", False),
    ],
)
def test_users_groups_and_uids(allow: Allowed, expected: bool) -> None:
    assert is_admitted(ANNA, allow, names=lambda _: frozenset({"users", "gpu"})) is expected
