"""Looks up the names of this machine's users, and their groups.

The lists of users may be on another machine that does not respond. So a child process looks up
users, and never the daemon itself. A caller waits at most a second. Results are cached for a while.
"""

from __future__ import annotations

import asyncio
import pwd
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from zerotoolsd.file_checks.file_checker_pool import Ask
from zerotoolsd.users.account import UnknownAccount, find_account, group_names
from zerotoolsd.users.rights import Caller

LOOK_SECONDS = 1.0
KNOWN_SECONDS = 60.0
"""Seconds for which a result is cached.

A user who is removed from a group keeps the group's rights for so long.
"""
AGAIN_SECONDS = 5.0
"""Seconds after which a failed lookup is repeated."""
MOST_KNOWN = 4096


def who_is(uid: int) -> dict[str, Any]:
    """Return the name and the group names of user `uid`. For an unknown user, the name is None and
    the list of groups is empty.
    """
    try:
        account = find_account(uid)
    except UnknownAccount:
        return {"name": None, "groups": []}
    return {"name": account.name, "groups": sorted(group_names(account))}


def uid_of(name: str) -> int | None:
    """Return the uid of the user with this name; None if the user does not exist."""
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError, OSError):
        return None


@dataclass
class _Known:
    caller: Caller
    until: float


class UserDirectory:
    """Looks up users by uid, and caches them; `ask` calls the child process (None: no lookups)."""

    def __init__(self, ask: Ask | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._clock = clock
        self._known: dict[int, _Known] = {}
        self._asked: dict[int, asyncio.Task[Caller]] = {}

    async def find(self, uid: int) -> Caller:
        """Return the user `uid` with name and groups.

        If the lookup fails, return the user with the last known name and without groups.
        """
        known = self._known.get(uid)
        if self._ask is None or (known is not None and self._clock() < known.until):
            return Caller(uid=uid) if known is None else known.caller
        if uid not in self._asked:
            self._asked[uid] = asyncio.create_task(self._look_up(uid))
        # The first caller may disconnect before the result arrives, while others wait for it.
        return await asyncio.shield(self._asked[uid])

    async def _look_up(self, uid: int) -> Caller:
        assert self._ask is not None
        try:
            found = await self._ask(LOOK_SECONDS, who_is, uid)
            seconds = KNOWN_SECONDS
        except Exception:  # of whatever kind: a user without a known name has no additional rights
            found, seconds = self._last(uid), AGAIN_SECONDS
        finally:
            del self._asked[uid]
        if len(self._known) >= MOST_KNOWN:
            self._known.clear()
        caller = Caller(uid=uid, name=found["name"], groups=frozenset(found["groups"]))
        self._known[uid] = _Known(caller, self._clock() + seconds)
        return caller

    def _last(self, uid: int) -> Mapping[str, Any]:
        known = self._known.get(uid)
        # A name stays valid; a group, which may give rights, counts only while lookups confirm it.
        return {"name": None if known is None else known.caller.name, "groups": ()}

    async def names(self, uids: Iterable[int]) -> dict[int, str | None]:
        """Return the name of each of these users keyed by uid; None for an unknown name."""
        wanted = list(set(uids))
        found = await asyncio.gather(*map(self.find, wanted))
        return {caller.uid: caller.name for caller in found}

    async def uid_of(self, name: str) -> int | None:
        """Return the uid of the user with this name; None if unknown or if the lookup fails."""
        if self._ask is None:
            return None
        try:
            found = await self._ask(LOOK_SECONDS, uid_of, name)
        except TimeoutError:
            return None
        return None if found is None else int(found)
