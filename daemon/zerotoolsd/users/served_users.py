"""Finds the users that this daemon serves: only its own user, or all users if the daemon can become
them.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from zerotools.core.errors import BadRequest
from zerotoolsd.users import run_as_user
from zerotoolsd.users.account import NAME_SERVICE, Account, UnknownAccount, user_name
from zerotoolsd.users.open_as_user import file_rights
from zerotoolsd.users.start_as_submitter import JobUser
from zerotoolsd.users.user_limits import LimitsOfUsers

NEEDED = {"CHOWN": 0, "KILL": 5, "SETGID": 6, "SETUID": 7}
"""The numbers of the Linux capabilities that running jobs of other users needs, by name."""


NOBODY = 65534
"""The gid that accesses the files of a uid without a user."""


class NotServed(BadRequest):
    """The daemon cannot run anything as this user; the message gives the reason."""


@dataclass(frozen=True, kw_only=True)
class ServedUsers:
    """The users for whom this daemon runs jobs.

    Attributes:
        alone: the reason why the daemon runs only jobs of its own uid `own`, in a sentence; None:
            the daemon runs jobs of all users.
        limits: the fields of JobUser that limit processes.
        quotas: the queue limits of each user.
    """

    own: int
    alone: str | None
    limits: Mapping[str, int | None] = field(default_factory=dict)
    find: Callable[[int], Account] = NAME_SERVICE.find
    quotas: LimitsOfUsers = field(default_factory=LimitsOfUsers)

    def owner_name(self, uid: int) -> str | None:
        """Return the name of the user `uid`, who owns a job; None if this daemon runs jobs of only
        one user.
        """
        return None if self.alone is not None else user_name(uid)

    def of(self, uid: int) -> JobUser | None:
        """Return the user as whom a job of user `uid` runs; None: the daemon's user.

        Raises NotServed and UnknownAccount if no job of this uid may run, NameLookupTimeout if the
        name service does not answer.
        """
        if uid == self.own or self.own != 0:
            return None  # a daemon of one user runs all its jobs as this user
        if self.alone is not None:
            raise NotServed(f"the daemon cannot run processes as uid {uid}: {self.alone}")
        return JobUser(account=self.find(uid), **self.limits)

    def for_files(self, uid: int) -> JobUser | None:
        """Return the user as whom the daemon reads and removes files of user `uid`; None: the
        daemon's user.

        This also works for a uid that no longer belongs to a user.
        """
        try:
            return self.of(uid)
        except UnknownAccount:
            account = Account(uid=uid, gid=NOBODY, groups=(), name=f"uid {uid}", home="/")
            return JobUser(account=account)


OWN_ONLY = ServedUsers(own=os.geteuid(), alone="it serves only the user that started it")


def why_alone(
    euid: int | None = None,
    status: Path = Path("/proc/self/status"),
    places: tuple[Path, ...] | None = None,
    probe: Callable[[], None] = lambda: _probe(),
) -> str | None:
    """Return the reason why this daemon cannot run jobs of other users; None if it can."""
    if (os.geteuid() if euid is None else euid) != 0:
        return "only a daemon that runs as root can run jobs of other users"
    lacking = _lacking(status)
    if lacking:
        return f"the daemon lacks {' and '.join(f'CAP_{name}' for name in lacking)}"
    try:
        probe()
    except PermissionError as error:
        why = f"{error.strerror} (a system call filter?)"
        return f"the kernel does not let it change to other users: {why}"
    for place in places or (Path(sys.executable), Path(run_as_user.__file__)):
        closed = _closed(place)
        if closed is not None:
            return (
                f"other users are not allowed to read {closed}, which their jobs need; install "
                "this program in /opt"
            )
    return None


def _probe() -> None:
    with file_rights(NOBODY, NOBODY):
        return


def _lacking(status: Path) -> list[str]:
    lines = status.read_text(encoding="ascii", errors="replace").splitlines()
    words = [line.split() for line in lines]
    found = next((int(each[1], 16) for each in words if each[:1] == ["CapEff:"]), 0)
    return [name for name, number in NEEDED.items() if not found >> number & 1]


def _closed(place: Path) -> Path | None:
    """Return the directory or file that prevents other users from reaching `place`; None if they
    can reach it. Symbolic links are followed.
    """
    for path in (place, place.resolve()):
        for each in (*reversed(path.parents), path):
            mode = each.stat().st_mode
            wanted = stat.S_IXOTH if stat.S_ISDIR(mode) else stat.S_IROTH
            if not mode & wanted:
                return each
    return None
