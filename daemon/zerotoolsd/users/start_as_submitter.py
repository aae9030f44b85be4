"""Starts programs as the submitter of a job, through `run_as_user`, which becomes the user first.

Every start uses `run_as_user`, so that the change of the user is implemented in only one place.
Transient systemd units also have `User=`, which makes the user the owner of the unit's control
group.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.jobs.text.exec_limits import too_long
from zerotoolsd.users import run_as_user
from zerotoolsd.users.account import Account

USUAL_PATH = "/usr/local/bin:/usr/bin:/bin"
_KEPT = ("LANG", "LC_ALL", "TZ")


@dataclass(frozen=True, kw_only=True)
class JobUser:
    """The user of a job, and the administrator's limits of the user's processes.

    `processes` is the largest number of processes of the user (RLIMIT_NPROC), and `open_files` the
    largest number of open files of each process (RLIMIT_NOFILE). `job_memory` (in bytes) and
    `job_processes` are limits of one attempt's systemd unit.
    """

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
        """Return the command that runs `program` as this user. The first word of `program` is its
        path.

        Args:
            output: a file for the output of the program.
            given: whether the program gets the environment that `given_env` prepared, and a high
                OOM score.
            group: a separate control group in which the program runs (see `run_as_user`).
        """
        text = None if output is None else str(output)
        who = {**self.who, "umask": umask, "output": text, "given": given, "group": group}
        return (sys.executable, "-I", "-S", str(run_as_user.__file__), json.dumps(who), *program)

    @property
    def who(self) -> dict[str, Any]:
        """The JSON object WHO, which describes this user to `run_as_user`."""
        account = self.account
        return {
            "uid": account.uid,
            "gid": account.gid,
            "groups": account.groups,
            "processes": self.processes,
            "open_files": self.open_files,
        }

    def environment(self, found: Mapping[str, str]) -> dict[str, str]:
        """Return the environment for a program of the daemon itself that runs as this user.

        Only a few harmless variables of `found` are kept.
        """
        return {**{name: found[name] for name in _KEPT if name in found}, **self.least}

    @property
    def least(self) -> dict[str, str]:
        """The environment variables that every process of the user needs; PATH is not root's."""
        account = self.account
        return {
            "PATH": USUAL_PATH,
            "HOME": account.home,
            "USER": account.name,
            "LOGNAME": account.name,
        }


def given_env(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` with a prefix before each name, for `JobUser.command(given=True)`.

    A user chose these variables. The prefix makes them meaningless to the interpreter and the
    loader, which run before the process has become the user.
    """
    given = {f"{run_as_user.PREFIX}{name}": text for name, text in environment.items()}
    longer = [name for name, text in given.items() if too_long(text, name) is not None]
    for name in longer:  # it fits without the prefix
        text = given[name]
        given[name], given[run_as_user.REST + name] = text[: len(text) // 2], text[len(text) // 2 :]
    return given
