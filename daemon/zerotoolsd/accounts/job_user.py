"""How a program is started as the submitter of a job: by `as_user`, which becomes the user first.

One program does it everywhere, so that there is one place to read and to test; systemd's own
`User=` is added to it for transient units, where it also gives the user the control group.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.jobs.text.program_strings import too_long
from zerotoolsd.accounts import as_user
from zerotoolsd.accounts.account import Account

USUAL_PATH = "/usr/local/bin:/usr/bin:/bin"
_KEPT = ("LANG", "LC_ALL", "TZ")


@dataclass(frozen=True, kw_only=True)
class JobUser:
    """The user whose job it is, and what the administrator lets their processes have: processes of
    the user (RLIMIT_NPROC), open files of each (RLIMIT_NOFILE); memory in bytes and processes of
    one attempt (its unit)."""

    account: Account
    processes: int | None = None
    open_files: int | None = None
    job_memory: int | None = None
    job_processes: int | None = None

    def command(
        self,
        program: Sequence[str],
        *,
        umask: int = 0o077,
        output: Path | None = None,
        given: bool = False,
        group: Mapping[str, Any] | None = None,
    ) -> tuple[str, ...]:
        """`program`, whose first word is a path, as this user. `given`: with what `given_env` has
        made of its environment, and among the first that end when memory runs out. `group`: in a
        control group of its own (`as_user`)."""
        text = None if output is None else str(output)
        who = {**self.who, "umask": umask, "output": text, "given": given, "group": group}
        return (sys.executable, "-I", "-S", str(as_user.__file__), json.dumps(who), *program)

    @property
    def who(self) -> dict[str, Any]:
        """What `as_user` has to know of them."""
        account = self.account
        return {
            "uid": account.uid,
            "gid": account.gid,
            "groups": account.groups,
            "processes": self.processes,
            "open_files": self.open_files,
        }

    def environment(self, found: Mapping[str, str]) -> dict[str, str]:
        """What a program of the daemon's own begins with as this user."""
        return {**{name: found[name] for name in _KEPT if name in found}, **self.least}

    @property
    def least(self) -> dict[str, str]:
        """What no process of the user can do without. Root's own PATH is not for others."""
        account = self.account
        return {
            "PATH": USUAL_PATH,
            "HOME": account.home,
            "USER": account.name,
            "LOGNAME": account.name,
        }


def given_env(environment: Mapping[str, str]) -> dict[str, str]:
    """For `JobUser.command(given=True)`: `environment`, which a user chose, under names that mean
    nothing to the interpreter and the loader which run before the process is the user's."""
    given = {f"{as_user.PREFIX}{name}": text for name, text in environment.items()}
    longer = [name for name, text in given.items() if too_long(text, name) is not None]
    for name in longer:  # it fits without the prefix
        text = given[name]
        given[name], given[as_user.REST + name] = text[: len(text) // 2], text[len(text) // 2 :]
    return given
