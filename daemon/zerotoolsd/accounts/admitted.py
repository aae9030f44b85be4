"""Whom `[users] allow` lets in: all, or those that it names."""

from __future__ import annotations

from collections.abc import Callable

from zerotoolsd.accounts.account import Account, group_names

ALL = "all"

Allowed = str | tuple[str | int, ...] | None
"""ALL; or names of users, `@` and the name of a group, and uids. None: nothing was said."""


def is_admitted(
    account: Account,
    allow: Allowed,
    names: Callable[[Account], frozenset[str]] = group_names,
) -> bool:
    """Whether `allow` lets the user in. Where nothing was said, it does: who may connect may."""
    if allow is None or allow == ALL:
        return True
    if isinstance(allow, str):
        return False
    if account.name in allow or account.uid in allow:
        return True
    wanted = {word[1:] for word in allow if isinstance(word, str) and word.startswith("@")}
    return bool(wanted) and not wanted.isdisjoint(names(account))
