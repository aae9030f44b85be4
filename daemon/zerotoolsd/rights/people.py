"""What the users of this machine are called, and which groups they are in.

The lists of users may lie on another machine that does not answer, so the daemon never looks there
itself: a process does, and who asks waits a second at most. What was found is taken for a while.
"""

from __future__ import annotations

import asyncio
import pwd
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from zerotoolsd.accounts.account import UnknownAccount, find_account, group_names
from zerotoolsd.looking.lookers import Ask
from zerotoolsd.rights.caller import Caller

LOOK_SECONDS = 1.0
KNOWN_SECONDS = 60.0
"""How long what was found is taken without asking again: so long does somebody stay an
administrator who is taken out of their group."""
AGAIN_SECONDS = 5.0
"""When it is asked again after no answer."""
MOST_KNOWN = 4096


def who_is(uid: int) -> dict[str, Any]:
    """The name of a user and of the groups, empty where the machine has no such user."""
    try:
        account = find_account(uid)
    except UnknownAccount:
        return {"name": None, "groups": []}
    return {"name": account.name, "groups": sorted(group_names(account))}


def uid_of(name: str) -> int | None:
    """The uid of the user with this name; None: there is none."""
    try:
        return pwd.getpwnam(name).pw_uid
    except (KeyError, ValueError, OSError):
        return None


@dataclass
class _Known:
    caller: Caller
    until: float


class People:
    """Users by uid; `ask` (None: nobody) looks them up."""

    def __init__(self, ask: Ask | None = None, clock: Callable[[], float] = time.monotonic) -> None:
        self._ask = ask
        self._clock = clock
        self._known: dict[int, _Known] = {}
        self._asked: dict[int, asyncio.Task[Caller]] = {}

    async def find(self, uid: int) -> Caller:
        """Who this is; of one who cannot be looked up now, what was known last, or the uid."""
        known = self._known.get(uid)
        if self._ask is None or (known is not None and self._clock() < known.until):
            return Caller(uid=uid) if known is None else known.caller
        if uid not in self._asked:
            self._asked[uid] = asyncio.create_task(self._look(uid))
        # Whoever asked first may be gone before the answer, for which others wait.
        return await asyncio.shield(self._asked[uid])

    async def _look(self, uid: int) -> Caller:
        assert self._ask is not None
        try:
            found = await self._ask(LOOK_SECONDS, who_is, uid)
            seconds = KNOWN_SECONDS
        except Exception:  # of whatever kind: a user whose name nobody knows has no more rights
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
        # A name stays what it was; a group that gives rights is believed only while it is told.
        return {"name": None if known is None else known.caller.name, "groups": ()}

    async def names(self, uids: Iterable[int]) -> dict[int, str | None]:
        """What these users are called."""
        wanted = list(set(uids))
        found = await asyncio.gather(*map(self.find, wanted))
        return {caller.uid: caller.name for caller in found}

    async def uid_of(self, name: str) -> int | None:
        """The uid of the user with this name; None: there is none, or nobody answers."""
        if self._ask is None:
            return None
        try:
            found = await self._ask(LOOK_SECONDS, uid_of, name)
        except TimeoutError:
            return None
        return None if found is None else int(found)
