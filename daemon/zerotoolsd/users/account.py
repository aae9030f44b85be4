"""Finds the account of a uid in the machine's lists of users. The lists may be on a server that
does not respond.

With LDAP, SSSD or NIS a lookup calls another program or machine (nsswitch.conf(5)). A lookup has no
timeout, and blocks its caller. `NameService` makes lookups in threads, and waits for a limited
time.
"""

from __future__ import annotations

import grp
import os
import pwd
import threading
import time
from collections.abc import Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, TypeVar, cast

from zerotools.core.errors import BadRequest


class UnknownAccount(BadRequest):
    """A uid belongs to no user of this machine, or its user cannot be looked up. So no job of this
    uid can run.
    """


@dataclass(frozen=True, kw_only=True)
class Account:
    """A user of the machine, with all values that a process of the user needs.

    `groups` are the gids of all groups of the user, including `gid`.
    """

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    home: str


def find_account(uid: int) -> Account:
    """Return the account of user `uid`, from the machine's lists of users and groups.

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


WAIT_SECONDS = 0.5
KEPT_SECONDS = 3600.0
FRESH_SECONDS = 60.0
"""Seconds that the name of a user is cached."""
MOMENT_SECONDS = 0.02
MOST = 8
MOST_KNOWN = 4096

Value = TypeVar("Value")


class NameLookupTimeout(UnknownAccount):
    """The user of a uid is unknown now, because the lookup has not answered in time."""


@dataclass
class _Asked:
    """A lookup of an account that runs in another thread, with its result when it has ended."""

    done: threading.Event = field(default_factory=threading.Event)
    value: Any = None
    error: UnknownAccount | None = None


class NameService:
    """Looks up users with `find` and `groups` in threads, and waits for each at most
    `wait_seconds`.
    """

    def __init__(
        self,
        find: Callable[[int], Account] = find_account,
        groups: Callable[[Account], frozenset[str]] = group_names,
        clock: Callable[[], float] = time.monotonic,
        wait_seconds: float = WAIT_SECONDS,
    ) -> None:
        self._find, self._groups, self._clock = find, groups, clock
        self._wait_seconds = wait_seconds
        self._asked: dict[Hashable, _Asked] = {}
        self._known: dict[Hashable, tuple[float, Any]] = {}
        self._named_at: dict[int, float] = {}

    def find(self, uid: int) -> Account:
        """Return the account of user `uid`.

        Raises UnknownAccount if the user does not exist, and NameLookupTimeout.
        """
        return self._ask(uid, lambda: self._find(uid))

    def groups(self, account: Account) -> frozenset[str]:
        """Return the names of the user's groups. Raises NameLookupTimeout."""
        return self._ask(("groups", account), lambda: self._groups(account))

    def name(self, uid: int) -> str | None:
        """Return the name of user `uid`, and wait only a short time for it.

        Return None if the user does not exist, or if no lookup has answered yet.
        """
        then, account = self._known.get(uid, (float("-inf"), None))
        asked_at = self._named_at.get(uid, float("-inf"))
        if self._clock() - max(then, asked_at) > FRESH_SECONDS:
            newest = dict(islice(self._named_at.items(), MOST_KNOWN))
            self._named_at = {**newest, uid: self._clock()}
            with suppress(UnknownAccount):
                account = self._ask(uid, lambda: self._find(uid), wait_seconds=MOMENT_SECONDS)
        else:
            self._forget_answered()
            _, account = self._known.get(uid, (then, account))
        return None if account is None else str(account.name)

    def _ask(
        self, key: Hashable, look: Callable[[], Value], wait_seconds: float | None = None
    ) -> Value:
        wait = self._wait_seconds if wait_seconds is None else wait_seconds
        self._forget_answered()
        asked = self._asked.get(key)
        if asked is None and len(self._asked) < MOST:
            is_silent = bool(self._asked)  # some answer is due already
            asked = self._asked[key] = _Asked()
            threading.Thread(target=_run_lookup, args=(asked, look), daemon=True).start()
            asked.done.wait(0 if is_silent else wait)
        if asked is None or not asked.done.is_set():
            return cast(Value, self._last(key))
        self._forget_answered()
        if asked.error is not None:
            raise asked.error
        return cast(Value, asked.value)

    def _forget_answered(self) -> None:
        """Cache the results of the lookups that have ended, and remove these lookups from the
        running ones.
        """
        for key, asked in list(self._asked.items()):
            if not asked.done.is_set():
                continue
            del self._asked[key]
            self._known.pop(key, None)
            if asked.error is None:
                if len(self._known) >= MOST_KNOWN:
                    self._known.clear()
                self._known[key] = (self._clock(), asked.value)

    def _last(self, key: Hashable) -> Any:
        then, value = self._known.get(key, (float("-inf"), None))
        if self._clock() - then > KEPT_SECONDS:
            raise NameLookupTimeout(
                "the machine's user database does not answer (test it with getent passwd; check "
                "sssd, nscd or the LDAP server)"
            )
        return value


def _run_lookup(asked: _Asked, look: Callable[[], Any]) -> None:
    try:
        asked.value = look()
    except UnknownAccount as error:
        asked.error = error
    except BaseException as error:
        asked.error = UnknownAccount(f"users cannot be looked up: {error}")
    finally:
        asked.done.set()


NAME_SERVICE = NameService()
"""The name service that all callers in this process share."""


def user_name(uid: int) -> str:
    """Return the name of user `uid` for messages; the uid as text if the name is unknown."""
    return NAME_SERVICE.name(uid) or f"uid {uid}"
