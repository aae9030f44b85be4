"""Supervisors and pretended ranks forked from a process that has imported them, which saves each
start of an attempt a fifth of a second of processor time.

Those of real daemons, of other users and in control groups of a daemon start anew.
"""

from __future__ import annotations

import atexit
import os
import select
import socket
import sys
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from harness import forked
from tests.daemon.made_attempts import an_attempt_row
from zerotoolsd.attempts.backends.fork_server import ForkServer, ServerKind
from zerotoolsd.attempts.backends.spawn_supervisor import spawn_child
from zerotoolsd.attempts.backends.start_by_systemd_or_as_child import Process, SpawnChild
from zerotoolsd.supervisor.preloaded.fork_attempts import AttemptForker, LoadedFiles
from zerotoolsd.supervisor.preloaded.run_rank_in_fork import NO_TOKEN, TOKEN
from zerotoolsd.users.start_as_submitter import JobUser


class OwnFork(ForkServer):
    """Forks supervisors in a fork of this process, which must have one thread."""

    def __init__(self) -> None:
        self.jobs = 0
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link.setblocking(False)
        self._forker = os.fork()
        if self._forker == 0:
            self._link.close()
            AttemptForker(theirs, LoadedFiles({}), "0").serve()
            os._exit(0)
        theirs.close()

    def end(self) -> None:
        """Wait for its end; the supervisors go on."""
        self._link.close()
        os.waitpid(self._forker, 0)


def spawning(server: ForkServer) -> SpawnChild:
    """What starts supervisors by `server`."""

    def spawn(run_dir: Path, user: JobUser | None, group: Mapping[str, Any] | None) -> Process:
        if user is None and group is None:
            return server.start(an_attempt_row(run_dir=str(run_dir)))
        return spawn_child(run_dir, user, group)

    return spawn


def spawn_forked(run_dir: Path, user: JobUser | None, group: Mapping[str, Any] | None) -> Process:
    """Start a supervisor by a server for all tests of this process, which is too large to fork."""
    return spawning(_server_of(os.getpid()))(run_dir, user, group)


@cache
def _server_of(pid: int) -> ForkServer:
    server = ForkServer(ServerKind(sys.executable, (), ((TOKEN, NO_TOKEN),)), time.monotonic())
    atexit.register(server.end)
    forked.waiting_servers.append(server.pid)
    while not server.is_ready():
        select.select([server._link], [], [])
    return server
