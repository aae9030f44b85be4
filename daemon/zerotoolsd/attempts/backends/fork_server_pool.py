"""Keeps all fork servers of the daemon, and chooses a server for each attempt. An attempt without a
fork server starts "cold": it imports torch itself.

The first attempt of a kind starts cold. The fork server for this kind is started after that attempt
has done a step, so that the imports of the server do not slow down the attempt. If a fork server
fails, it is ended, and the attempt starts cold; later a new fork server is started.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Any

from zerotools.core.counts_and_sizes import bytes_of
from zerotools.jobs.binding.durations import duration_text, seconds_of
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotoolsd.attempts.backends.choose_systemd_or_child import LaunchBackend
from zerotoolsd.attempts.backends.fork_server import (
    ForkServer,
    NoServer,
    ServerKind,
    WarmSupervisor,
    kind_of,
    why_cold,
)
from zerotoolsd.config.config_tables import WarmStartConfig
from zerotoolsd.queue.rows import AttemptRow
from zerotoolsd.supervisor.attempt_plan import Plan
from zerotoolsd.users.start_as_submitter import JobUser

TEND_SECONDS = 1.0
AGAIN_SECONDS = 60.0
"""Seconds to wait before another fork server of a kind is started, after the imports of one
have failed.
"""
WARM = "started warm"

log = logging.getLogger(__name__)

MakeServer = Callable[[ServerKind, float], ForkServer]
IsLoading = Callable[[AttemptRow], bool]
"""A function that returns whether any running attempt has not done a step yet."""


class ForkServerPool:
    """All fork servers of the daemon. `make` starts a server of a given kind."""

    def __init__(
        self,
        config: WarmStartConfig,
        way: LaunchBackend,
        make: MakeServer = ForkServer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._config = config
        self._way = way
        self._make = make
        self._clock = clock
        self._servers: dict[ServerKind, ForkServer] = {}
        self._wanted: dict[ServerKind, AttemptRow] = {}
        self._failed: dict[ServerKind, tuple[float, str]] = {}
        """For each kind of fork server, the time and the reason of its last failure."""
        self.trouble: str | None = None
        """The reason of the last failure of any fork server; None if there was none."""

    def start(
        self, attempt: AttemptRow, plan: Plan, spec: JobSpec, user: JobUser | None
    ) -> tuple[WarmSupervisor | None, str | None]:
        """Fork the supervisor of a prepared attempt from a fork server.

        Return (the supervisor, a sentence about the start). The supervisor is None if the attempt
        must start without a fork server. The sentence is None if fork servers are not enabled. If
        this raises OSError, no process of the attempt is running.
        """
        if not self._config.enabled:
            return None, None
        if (why := why_cold(plan, spec, self._way, user)) is not None:
            return None, f"started cold: {why}"
        kind = kind_of(plan, spec)
        server = self._servers.get(kind)
        if server is None:
            self._wanted[kind] = attempt
            return None, f"started cold: {self._why_none(kind)}"
        try:
            if not server.is_ready():
                return None, "started cold: its fork server still imports"
            started = server.start(attempt)
        except NoServer as error:
            self._fail(kind, str(error))
            self._wanted[kind] = attempt
            return None, f"started cold: {error}"
        server.used = self._clock()
        return started, WARM

    def _why_none(self, kind: ServerKind) -> str:
        if kind in self._failed:
            return self._failed[kind][1]
        return "no fork server runs for its environment yet"

    def _fail(self, kind: ServerKind, why: str) -> None:
        self._servers.pop(kind).end()
        self._failed[kind] = self._clock(), why
        self.trouble = why
        log.warning("fork server %s is ended: %s", kind.name, why)

    async def run_forever(self, is_loading: IsLoading) -> None:
        """Start missing fork servers and end unused ones, again and again, until this task is
        cancelled. `is_loading` returns whether an attempt has not done a step yet.
        """
        while self._config.enabled:
            await asyncio.sleep(TEND_SECONDS)
            try:
                self.tend(is_loading)
            except OSError as error:  # no descriptors, no memory: it is tried again
                log.warning("fork servers cannot be managed now: %s", error)

    def tend(self, is_loading: IsLoading) -> None:
        """Start missing fork servers and end unused ones, once."""
        now = self._clock()
        for kind, server in list(self._servers.items()):
            try:
                server.is_ready()
            except NoServer as error:
                self._fail(kind, str(error))
                continue
            self._end_if_due(kind, server, now)
        for kind, attempt in list(self._wanted.items()):
            failed = self._failed.get(kind, (float("-inf"), ""))[0]
            if kind not in self._servers and now - failed < AGAIN_SECONDS:
                continue
            if not is_loading(attempt):
                del self._wanted[kind]
                self._add(kind, now)

    def _end_if_due(self, kind: ServerKind, server: ForkServer, now: float) -> None:
        idle = seconds_of(self._config.idle)
        if server.bytes is not None and server.bytes > bytes_of(self._config.memory):
            self._fail(
                kind, f"its fork server held {server.bytes} bytes, more than warm_start.memory = "
                f"{self._config.memory}"
            )  # fmt: skip
        elif now - server.used > idle:
            log.info("fork server %s ends: unused for %s", kind.name, duration_text(idle))
            self._servers.pop(kind).end()

    def _add(self, kind: ServerKind, now: float) -> None:
        if kind in self._servers:
            return
        while len(self._servers) >= self._config.servers:
            oldest = min(self._servers, key=lambda each: self._servers[each].used)
            log.info("fork server %s ends: a fork server of another kind is needed", oldest.name)
            self._servers.pop(oldest).end()
        self._servers[kind] = self._make(kind, now)
        self._failed.pop(kind, None)

    def close(self) -> None:
        """End all fork servers. The processes that they have forked continue."""
        for server in self._servers.values():
            server.end()
        self._servers.clear()

    def to_json(self) -> dict[str, Any]:
        """Return the state of the fork servers as JSON, which `doctor` and `health` show."""
        now = self._clock()
        return {
            "enabled": self._config.enabled,
            "trouble": self.trouble,
            "servers": [
                {
                    "kind": kind.name,
                    "pid": server.pid,
                    "python": kind.python,
                    "ready": server.bytes is not None,
                    "memory_bytes": server.bytes,
                    "idle_seconds": now - server.used,
                    "jobs": server.jobs,
                }
                for kind, server in self._servers.items()
            ],
        }
