"""The account of a uid on this machine."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zerotools.core.errors import BadRequest


class UnknownAccount(BadRequest):
    """A uid does not belong to a user of this machine, so no job of it runs."""


@dataclass(frozen=True, kw_only=True)
class Account:
    """A user, with the identity of a process of theirs. `groups` are all of them, including
    `gid`."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    home: str

    def to_json(self) -> dict[str, Any]:
        """Return JSON values for `account_of`."""
        return {**self.__dict__, "groups": list(self.groups)}


def account_of(tree: Mapping[str, Any]) -> Account:
    """Return the account that `Account.to_json` made."""
    return Account(**{**tree, "groups": tuple(tree["groups"])})


def find_account(uid: int) -> Account:
    """Return the user with this uid, from the machine's lists of users and groups.

    Raises UnknownAccount.
    """
    try:
        found = pwd.getpwuid(uid)
        groups = os.getgrouplist(found.pw_name, found.pw_gid)
    except (KeyError, OverflowError):
        raise UnknownAccount(
            f"uid {uid} is not a user of this machine, so its groups and its home are not known; "
            "add the user (getent passwd must list it), then submit again"
        ) from None
    except OSError as error:
        raise UnknownAccount(
            f"the groups of uid {uid} cannot be looked up: {error.strerror}; submit again when "
            "getent group answers"
        ) from None
    return Account(
        uid=uid,
        gid=found.pw_gid,
        groups=tuple(sorted({found.pw_gid, *groups})),
        name=found.pw_name,
        home=found.pw_dir or "/",
    )


def group_names(account: Account) -> frozenset[str]:
    """Return the names of the groups of a user; a group without a name is left out."""
    return frozenset(filter(None, map(_group_name, account.groups)))


def _group_name(gid: int) -> str | None:
    try:
        return grp.getgrgid(gid).gr_name
    except (KeyError, OverflowError):
        return None
