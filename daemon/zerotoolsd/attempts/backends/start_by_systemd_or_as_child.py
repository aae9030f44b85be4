"""Starts the supervisor of each attempt through systemd or as a child process."""

from __future__ import annotations

import logging
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotoolsd.attempts.backends.choose_systemd_or_child import CHILD, SYSTEMD, LaunchBackend
from zerotoolsd.attempts.backends.fork_server import WarmSupervisor
from zerotoolsd.attempts.backends.spawn_supervisor import spawn_child
from zerotoolsd.attempts.backends.start_transient_unit import UnitRequest, request_unit
from zerotoolsd.queue.rows import AttemptRow
from zerotoolsd.supervisor.attempt_cgroup import group_name
from zerotoolsd.users.start_as_submitter import JobUser

PLAIN_SECONDS = 300.0
"""Seconds for which supervisors are started as child processes after systemd has failed to
start one.
"""

Process = subprocess.Popen[bytes] | WarmSupervisor
SpawnChild = Callable[[Path, JobUser | None, Mapping[str, Any] | None], Process]
"""A function of a run directory, a user and a control group, as `spawn_child`."""

log = logging.getLogger(__name__)


class NotReady(Exception):
    """systemd cannot be used now, and the configuration allows no other way to start supervisors.
    The message gives the reason.
    """


@dataclass(frozen=True)
class Spawned:
    """A process that was started for an attempt: the supervisor itself, or a `systemd-run` that
    asks systemd for the supervisor. In the second case `request` is set.
    """

    process: Process
    request: UnitRequest | None = None

    def open_pidfd(self) -> int:
        """Return a new pidfd of the process. Raises OSError."""
        if isinstance(self.process, WarmSupervisor):
            return os.dup(self.process.pidfd)
        return os.pidfd_open(self.process.pid)  # a child that was not waited for keeps its pid

    def disown(self) -> None:
        """Stop waiting for the process, which continues to run."""
        if isinstance(self.process, WarmSupervisor):
            self.process.close()
        self.process.returncode = 0
        if self.request is not None:
            self.request.close()


class SupervisorSpawner:
    """Starts supervisors through systemd or as child processes.

    `grace_seconds` is the time that a job has to save when the machine shuts down. `spawn` starts
    a supervisor as a child process.
    """

    def __init__(
        self,
        way: LaunchBackend,
        grace_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        spawn: SpawnChild = spawn_child,
    ) -> None:
        self.way = way
        self._spawn = spawn
        self._grace_seconds = grace_seconds
        self._clock = clock
        self._plain_until = float("-inf")
        self._trouble: str | None = None
        """The reason why systemd failed to start the last supervisor; None if it did not fail."""
        self._why: dict[str, str] = {}
        """The reason why systemd failed to start the supervisor of an attempt, by token."""

    def spawn(
        self,
        attempt: AttemptRow,
        user: JobUser | None = None,
        limits: Mapping[str, int] | None = None,
    ) -> Spawned:
        """Start the supervisor of a prepared attempt, as the user `user` (None: the user of the
        daemon).

        `limits` are set on the control group that the daemon creates as root for a supervisor of
        another user; None: no control group is created.

        If this raises OSError or NotReady, no process of the attempt is running.
        """
        if self.way.program is None or self._clock() < self._plain_until:
            return self._child(attempt, user, limits)
        try:
            request = request_unit(self.way, attempt, self._grace_seconds, user)
        except FileNotFoundError as error:
            if error.filename != self.way.program:
                raise
            self._failed(f"{self.way.program} does not exist any more")
            if not self.way.may_be_child:
                raise NotReady(f"{self.way.program} does not exist any more") from None
            return self._child(attempt, user, limits)
        return Spawned(request.process, request)

    def _child(
        self, attempt: AttemptRow, user: JobUser | None, limits: Mapping[str, int] | None
    ) -> Spawned:
        group = None
        if limits is not None:
            name = group_name(attempt.job_id, attempt.number, attempt.token)
            group = {"name": name, "limits": dict(limits)}
        return Spawned(self._spawn(Path(attempt.run_dir), user, group))

    def ended(self, token: str, request: UnitRequest) -> None:
        """Keep the result of a `systemd-run` that has ended, and close its file descriptors."""
        why = request.failure()
        request.close()
        if why is None:
            self.forget(token)
        else:
            self._why[token] = why

    def why_not(self, token: str) -> str | None:
        """Return the reason why systemd did not start the supervisor of the attempt with this
        token, and forget the reason. Return None if there is no such reason.

        If there is a reason, and the configuration allows child processes, supervisors are started
        as child processes for the next PLAIN_SECONDS.
        """
        why = self._why.pop(token, None)
        if why is not None:
            self._failed(why)
        return why

    def forget(self, token: str) -> None:
        """Forget the reason why systemd did not start the attempt's supervisor. The caller found
        that the supervisor runs.
        """
        self._why.pop(token, None)
        if self._clock() >= self._plain_until:
            self._trouble = None

    def _failed(self, why: str) -> None:
        self._trouble = why
        if self.way.may_be_child:
            self._plain_until = self._clock() + PLAIN_SECONDS
            log.warning("supervisors are children of the daemon for %g s: %s", PLAIN_SECONDS, why)

    def to_json(self) -> dict[str, str | None]:
        """Return a JSON object that says how supervisors are started now.

        `why` is the end of a sentence that begins "supervisors are". `trouble` is the reason why
        systemd could not start the last supervisor.
        """
        by, why = "user-systemd" if self.way.of_user else SYSTEMD, self.way.why
        if self.way.program is None:
            by = CHILD
        elif self._clock() < self._plain_until:
            by, why = CHILD, "children of the daemon for now"
        return {"by": by, "why": why, "trouble": self._trouble}
