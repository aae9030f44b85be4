"""Starts a fork server, and asks it to fork supervisors. `supervisor/preloaded` has the code that
runs inside the fork server.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotoolsd.attempts.backends.choose_systemd_or_child import LaunchBackend
from zerotoolsd.attempts.backends.spawn_supervisor import open_log, supervisor_environment
from zerotoolsd.queue.rows import AttemptRow
from zerotoolsd.supervisor.attempt_plan import Plan
from zerotoolsd.supervisor.preloaded import entry
from zerotoolsd.supervisor.preloaded.run_rank_in_fork import NO_TOKEN, THREADS, TOKEN, is_program
from zerotoolsd.users.start_as_submitter import JobUser

ANSWER_SECONDS = 2.0
"""Longest time to wait for a fork, in seconds. A fork takes milliseconds, and the daemon does
nothing else meanwhile.
"""
LONGEST = 1 << 16
_EXECUTE = (
    *(sys.executable, "-I", "-S", "-c"),
    "import os, sys; os.execv(sys.argv[1], sys.argv[1:])",
)
"""Command that executes the interpreter of the user. If the interpreter's file system hangs,
only this process hangs.
"""

log = logging.getLogger(__name__)


class NoServer(Exception):
    """The fork server cannot be used. The message gives the reason."""


@dataclass
class WarmSupervisor:
    """The keeper of an attempt, forked by a fork server. It has those methods of `subprocess.Popen`
    that the daemon uses.

    The fork server is its parent process, so the daemon cannot read its exit status.
    """

    pid: int
    pidfd: int
    returncode: int | None = None

    def wait(self) -> None:
        """Close the file descriptor of the process, after `pidfd` has become readable."""
        self.close()

    def kill(self) -> None:
        """Send SIGKILL to the process."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)

    def close(self) -> None:
        """Close the file descriptor of the process. The process continues."""
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


class ForkServer:
    """A process that imports the modules of its `kind`, and then forks supervisors."""

    def __init__(self, kind: ServerKind, now: float) -> None:
        """Start the process of the fork server. `now` is the current time. Raises OSError."""
        self.kind = kind
        self.used = now
        self.jobs = 0
        self.bytes: int | None = None
        """The memory of the fork server after its imports, in bytes."""
        self._link, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link.setblocking(False)
        try:
            self._process = subprocess.Popen(
                (*_EXECUTE, kind.python, "-P", str(entry.__file__), *kind.modules),
                stdin=theirs.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env=dict(kind.env),
                start_new_session=True,
            )
        except OSError:
            self._link.close()
            raise
        finally:
            theirs.close()
        log.info("fork server %s, pid %d, imports for %s", kind.name, self.pid, kind.python)

    @property
    def pid(self) -> int:
        """The pid of the fork server."""
        pid: int = self._process.pid
        return pid

    def is_ready(self) -> bool:
        """Return whether the fork server has finished its imports. Raises NoServer if it has
        ended or refuses to work.
        """
        while (answer := self._receive()) is not None:
            if "ready" in answer:
                self.bytes = int(answer["ready"])
                log.info("fork server %s is ready after %.1f s", self.kind.name, answer["seconds"])
        return self.bytes is not None

    def start(self, attempt: AttemptRow) -> WarmSupervisor:
        """Ask the fork server to fork the supervisor of a prepared attempt. Return the new process.

        Raises OSError. Raises NoServer if the server does not confirm the fork. In this case the
        supervisor may be running or not, and another backend may start the attempt: the lock of the
        attempt admits only one supervisor.
        """
        request = {
            "token": attempt.token,
            "run_dir": attempt.run_dir,
            "env": supervisor_environment(),
        }
        output = open_log(Path(attempt.run_dir))
        try:
            socket.send_fds(self._link, [json.dumps(request).encode()], [output])
        except OSError as error:
            raise self._connection_error(f"does not accept requests: {error.strerror}") from None
        finally:
            os.close(output)
        return self._await_reply(attempt)

    def _await_reply(self, attempt: AttemptRow) -> WarmSupervisor:
        deadline = time.monotonic() + ANSWER_SECONDS
        while (left := deadline - time.monotonic()) > 0:
            if not select.select([self._link], [], [], left)[0]:
                break
            answer = self._receive()
            if answer is not None and answer.get("token") == attempt.token:
                self.jobs += 1
                return WarmSupervisor(int(answer["pid"]), int(answer["pidfd"]))
        raise NoServer(f"its fork server has not answered within {ANSWER_SECONDS:g} s")

    def _receive(self) -> dict[str, Any] | None:
        """Return the next message of the fork server; None if no message has arrived. If a file
        descriptor came with the message, it is in the key `pidfd`.

        Raises NoServer.
        """
        try:
            data, descriptors, _, _ = socket.recv_fds(self._link, LONGEST, 1)
        except BlockingIOError:
            return None
        except OSError as error:
            # A server that ends with an unread request resets the link; its messages can still be
            # read.
            raise self._connection_error(f"cannot be reached: {error.strerror}") from None
        if not data:
            raise self._connection_error("does not answer any more")
        try:
            answer = json.loads(data)
        except (ValueError, RecursionError):
            answer = {}
        if not isinstance(answer, Mapping) or answer.keys() & {"refused"}:
            raise NoServer(str(dict(answer).get("refused")))
        return {**answer, **({"pidfd": descriptors[0]} if descriptors else {})}

    def _connection_error(self, otherwise: str) -> NoServer:
        """Return the exception for a broken connection to the fork server.

        Its message says how the server ended, or is `otherwise` if this is unknown.
        """
        try:
            status = self._process.wait(0.5)
        except subprocess.TimeoutExpired:
            return NoServer(f"its fork server {otherwise}")
        how = f"was ended by signal {-status}" if status < 0 else f"ended with status {status}"
        return NoServer(f"its fork server {how}")

    def end(self) -> None:
        """End the fork server. The processes that it has forked continue."""
        self._link.close()
        self._process.kill()
        # The server was killed and holds nothing: wait shortly; `poll` reads its status later.
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)


COMMON = ("zerotoolsd.trainer.run_rank:set_library_defaults",)
TORCH = (
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "zerotoolsd.trainer.prepare_and_train",
    "zerotoolsd.trainer.engine_torch.engine",
)
"""Modules that every rank of the built-in trainer imports."""
MODULES = {"torch": TORCH}
"""Modules that a fork server imports, for each engine that it can be used for."""

_PER_ATTEMPT = ("CUDA_VISIBLE_DEVICES", "GLOO_SOCKET_IFNAME")
_OURS = "ZEROTOOLS_"
_FOR_SERVERS = {
    THREADS: "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",  # pandas imports Arrow, with its jemalloc
    TOKEN: NO_TOKEN,
}
"""Environment variables that limit a fork server to one thread, because a fork keeps only the
thread that forks.
"""
_PRELOADS = ("LD_PRELOAD", "LD_AUDIT")
_PINS = ("OMP_PROC_BIND", "OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")
_NO_PINS = ("", "false", "none", "disabled")
"""Values of the variables `_PINS` with which OpenMP does not bind threads to processors.

With other values, a fork server and all ranks that it forks would be bound to one processor.
"""


@dataclass(frozen=True)
class ServerKind:
    """The command, the environment and the imported modules of a fork server."""

    python: str
    modules: tuple[str, ...]
    env: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        """Return a short name for this kind of fork server, the same for equal kinds. The name
        contains no value of an environment variable.
        """
        text = json.dumps([self.python, self.modules, self.env])
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def kind_of(plan: Plan, spec: JobSpec) -> ServerKind:
    """Return the kind of fork server that an attempt of the job `spec` needs."""
    env = {**server_environment(plan.env), **_FOR_SERVERS}
    modules = (*COMMON, *MODULES[spec.engine])
    return ServerKind(plan.argv[0], modules, tuple(sorted(env.items())))


def server_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables with which the fork server of a rank is started: those of
    the rank, `env`, except the ones that differ between attempts or ranks.
    """
    return {
        name: value
        for name, value in env.items()
        if not name.startswith(_OURS) and name not in (*_PER_ATTEMPT, THREADS)
    }


def why_cold(plan: Plan, spec: JobSpec, way: LaunchBackend, user: JobUser | None) -> str | None:
    """Return why the attempt must start without a fork server; None if it may use one."""
    if spec.engine == "script":
        return "its program comes from the user"
    if spec.engine not in MODULES:
        return f"engine {spec.engine} may not work after a fork"
    if spec.train.compile:
        return "train.compile starts processes and threads"
    if not is_program(plan.argv):
        return "its command does not run the trainer"
    if way.program is not None:
        return f"supervisors are {way.why}, each in its own systemd unit"
    if user is not None:
        return "it is a job of another user than the daemon's"
    preload = next((name for name in _PRELOADS if plan.env.get(name)), None)
    if preload is not None:
        return f"{preload} is set, and its library may not work after a fork"
    pins = next((name for name in _PINS if plan.env.get(name, "").lower() not in _NO_PINS), None)
    if pins is not None:
        return f"{pins} is set, so OpenMP would bind all forks to the same processors"
    if not plan.env.get(THREADS, "").isdecimal():
        return f'{THREADS} = "{plan.env.get(THREADS, "")}" is not a single number'
    return None
