"""Starts the ranks, with torch's `env://` variables. A rank never outlives the supervisor."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
from pathlib import Path
from typing import Any

from zerotoolsd.supervisor import spawn_child
from zerotoolsd.supervisor.attempt_plan import PORT, Plan
from zerotoolsd.supervisor.rank_log import RankLog
from zerotoolsd.supervisor.set_numa_binding import RankBinding
from zerotoolsd.supervisor.spawn_child import (
    BegunProgram,
    Execute,
    execute_program,
    execute_without_sigterm,
)

_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


class KnownRank:
    """A rank and how it ended.

    `status` is the wait status; None while the rank runs. `killed` is True if the supervisor killed
    the rank. `ended_clock` is the monotonic time at which the supervisor noticed the end.
    `oom_killed` is True if the kernel's OOM killer ended a process just before the rank's end. The
    last two are None if unknown.
    """

    def __init__(
        self,
        index: int,
        status: int | None = None,
        killed: bool = False,
        ended_clock: float | None = None,
        oom_killed: bool | None = None,
    ) -> None:
        self.index = index
        self.status = status
        self.killed = killed
        self.ended_clock = ended_clock
        self.oom_killed = oom_killed

    def last_lines(self) -> str:
        """Return an empty text, because the output of the rank is unknown."""
        return ""

    @property
    def exit_code(self) -> int | None:
        """The exit code; None while the rank runs, or if a signal ended it."""
        if self.status is None or not os.WIFEXITED(self.status):
            return None
        return os.WEXITSTATUS(self.status)

    @property
    def signal(self) -> int | None:
        """The number of the signal that ended the rank, or None."""
        if self.status is None or not os.WIFSIGNALED(self.status):
            return None
        return os.WTERMSIG(self.status)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object of the rank in `exit.json`."""
        return {
            "rank": self.index,
            "exit_code": self.exit_code,
            "signal": self.signal,
            "killed": self.killed,
        }


class SupervisedRank(KnownRank):
    """A rank that this supervisor started, and the output of the rank.

    `start` describes the start; None after the rank has executed its program. `binding` is the
    processor binding: first the planned one, later the one that was set.
    """

    def __init__(
        self, index: int, start: BegunProgram, log: RankLog, binding: RankBinding | None = None
    ) -> None:
        super().__init__(index)
        self.pid = start.pid
        self.start: BegunProgram | None = start
        self.log = log
        self.binding = binding

    def last_lines(self) -> str:
        """Return the last lines of the rank's output, at most 4 KiB."""
        return self.log.last_lines()

    @property
    def bound(self) -> dict[str, Any]:
        """Return the processor binding of the rank as a JSON object for `run.json` and `exit.json`.
        It is empty if the rank is not bound.
        """
        return {} if self.binding is None else {"binding": self.binding.to_json()}

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object of the rank in `exit.json`."""
        return {**KnownRank.to_json(self), **self.bound}


def become_subreaper() -> None:
    """Make this process the new parent of every descendant that loses its parent, also of daemons.
    Raises OSError.
    """
    if _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0):
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


_NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.ENOPROTOOPT, errno.EPERM)
"""Error numbers of a machine that has no IPv6 or does not permit it."""


def hold_port() -> socket.socket:
    """Reserve a TCP port at which the ranks will meet, and return the socket that reserves it.

    While this socket is open, the kernel does not give the port to any other socket or connection.
    Without it, any process could take the port before a rank listens there.

    The socket never listens, and has SO_REUSEADDR like the rank's socket (torch's, with and without
    libuv, and gloo's). So the rank may bind the same port (inet_csk_bind_conflict in
    net/ipv4/inet_connection_sock.c). Raises OSError if no port is available.
    """
    try:
        return _bind_port(socket.AF_INET6, "::")
    except OSError as error:
        if error.errno not in _NO_IPV6:
            raise
    return _bind_port(socket.AF_INET, "0.0.0.0")


def _bind_port(family: socket.AddressFamily, everywhere: str) -> socket.socket:
    held = socket.socket(family)
    try:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            held.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        held.bind((everywhere, 0))
    except OSError:
        held.close()
        raise
    return held


def spawn_rank(
    plan: Plan,
    index: int,
    port: int,
    log_path: Path,
    entrance: str | None = None,
    execute: Execute = execute_program,
) -> SupervisedRank:
    """Begin to start the rank `index`, without waiting until its program runs. The rank enters
    the control group at `entrance`.

    `entrance` is the path of a `cgroup.procs` file; None: no control group. `port` is the
    port at which the ranks meet. Raises OSError if the machine lacks a resource now.
    """
    log, binding = RankLog(log_path, plan.log_limit_bytes), plan.binding_of(index)
    try:
        start = spawn_child.start_child(
            [str(port) if word == PORT else word for word in plan.argv],
            env={**plan.env, **({} if plan.launcher else variables_of(plan, index, port))},
            cwd=plan.cwd,
            output=log.write_fd,
            umask=plan.umask,
            entrance=entrance,
            execute=execute_without_sigterm if plan.watches else execute,
            binding=binding,
        )
    except OSError:
        log.spawned()
        log.close()
        raise
    log.spawned()
    return SupervisedRank(index, start, log, binding)


def variables_of(plan: Plan, index: int, port: int) -> dict[str, str]:
    """Return the environment variables of torch's `env://` method for the rank `index`,
    including the number of the node, as torchrun sets them.
    """
    alone = {
        "RANK": str(index),
        "LOCAL_RANK": str(index),
        "WORLD_SIZE": str(plan.world_size),
        "LOCAL_WORLD_SIZE": str(plan.world_size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    if not plan.meeting:
        return alone
    nodes, node = plan.meeting["nodes"], plan.meeting["node_rank"]
    return {
        **alone,
        "RANK": str(node * plan.world_size + index),
        "WORLD_SIZE": str(nodes * plan.world_size),
        "GROUP_RANK": str(node),
        "GROUP_WORLD_SIZE": str(nodes),
        "MASTER_ADDR": plan.meeting["host"],
        "MASTER_PORT": str(plan.meeting["port"]),
    }
