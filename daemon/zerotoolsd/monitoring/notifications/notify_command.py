"""Runs the program that the job file names for notices: once for each notice, as the job's user."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from zerotoolsd.monitoring.notifications.message_formats import NotDelivered
from zerotoolsd.queue.tables.notice_outbox import Notice
from zerotoolsd.users.account import NameLookupTimeout
from zerotoolsd.users.served_users import OWN_ONLY, ServedUsers
from zerotoolsd.users.start_as_submitter import USUAL_PATH, given_env

KILL_SECONDS = 5.0
_RUNNING = (sys.executable, "-I", "-S", str(Path(__file__).with_name("notify_command_process.py")))
_BY_SHELL = ("/bin/sh", "-c", 'exec "$@"', "sh")
"""Prefix of the command: a shell finds and opens the program, which may be on a file system that
hangs.
"""


class CommandRunner:
    """Runs commands for notices, each for at most `timeout_seconds` and as the job's user.

    `users` returns the user of a job.
    """

    def __init__(self, timeout_seconds: float, users: ServedUsers = OWN_ONLY) -> None:
        self._timeout = timeout_seconds
        self._users = users

    async def send(self, notice: Notice) -> str:
        """Run the command once, with the notice on its standard input. Return its exit status in
        words.

        Raises NotDelivered, and BadRequest if the daemon may not run programs as the job's user.
        """
        argv = json.loads(notice.target)
        tree = json.loads(notice.body)
        try:
            user = self._users.of(notice.uid)
        except NameLookupTimeout as error:  # the delivery is repeated
            raise NotDelivered(str(error)) from None
        environment = _environment(notice, tree)
        command = (*_BY_SHELL, *argv)
        if user is not None:
            command = user.command(command, given=True)
            environment = given_env({**environment, **user.least})
        try:
            child = await asyncio.create_subprocess_exec(
                *_RUNNING,
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
                cwd="/",
                env=environment,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise NotDelivered(f"{argv[0]} cannot be started: {error}") from None
        try:
            async with asyncio.timeout(self._timeout):
                await child.communicate(notice.body.encode())
        except TimeoutError:
            raise NotDelivered(f"{argv[0]} did not end within {self._timeout:g} s") from None
        finally:
            await _end_all(child)
        if child.returncode:
            raise NotDelivered(f"{argv[0]} ended with status {child.returncode}")
        return f"{argv[0]} ended with status 0"


def _environment(notice: Notice, tree: Mapping[str, Any]) -> dict[str, str]:
    """Return the environment of the command: variables that describe the notice, and no variable of
    the daemon.
    """
    return {
        "PATH": USUAL_PATH,
        "LANG": "C.UTF-8",
        "ZEROTOOLS_NOTICE": notice.notice,
        "ZEROTOOLS_NOTICE_ID": notice.key,
        "ZEROTOOLS_JOB": str(notice.job_id),
        "ZEROTOOLS_TEXT": str(tree["text"]).replace("\0", "").encode("utf-8", "replace").decode(),
    }


async def _end_all(child: asyncio.subprocess.Process) -> None:
    """End the child process `child` if it still runs. The child then ends all processes that the
    command has started.
    """
    if child.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            child.terminate()
        with suppress(TimeoutError):
            await asyncio.wait_for(child.wait(), KILL_SECONDS)
    await end_session(child)


async def end_session(child: asyncio.subprocess.Process) -> None:
    """Kill the child process and its session, if it still runs, and wait for its end.

    Until the child is waited for, no other process gets its pid.
    """
    if child.returncode is None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        with suppress(TimeoutError):
            await asyncio.wait_for(child.wait(), KILL_SECONDS)
