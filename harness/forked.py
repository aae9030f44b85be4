"""Starts Python programs with torch already imported, by a fork of a server process
(`forkserver`).
"""

from __future__ import annotations

import json
import os
import resource
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from harness import leftovers
from harness.patience import Deadline
from harness.started import END_SECONDS, Started, kill_family
from zerotoolsd.supervisor.preloaded.run_rank_in_fork import NO_TOKEN, TOKEN

SERVER = Path(__file__).with_name("forkserver.py")
TORCH = (
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
    "transformers.models.t5.modeling_t5",
    "zerotools.formats.dcp.read",
    "zerotoolsd.trainer.prepare_and_train",
    "zerotoolsd.trainer.engine_torch.engine",
)
"""Modules that ranks of the trainer import. The import takes a quarter of a second in each rank."""
DEEPSPEED = (
    *TORCH,
    "safetensors.torch",
    "torch.utils.cpp_extension",
    "torch._inductor.compile_fx",  # which it imports with the first engine
    "deepspeed",
    "zerotoolsd.trainer.engine_deepspeed.engine",
)
"""Modules that ranks with DeepSpeed import, from DeepSpeed and from the trainer."""
SAME_FOR_ALL = {
    "OMP_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "true",
    "DS_ACCELERATOR": "cpu",
}
"""Environment variables that libraries read when they are imported."""


class Forked:
    """A forked process, with methods like those of `subprocess.Popen`.

    `kept` is True if a fixture ends the process: see `Started`.
    """

    def __init__(self, command: Sequence[str], end: int, *, kept: bool = False) -> None:
        self.args = command
        self.returncode: int | None = None
        self.cpu_seconds = 0.0
        self._end = os.fdopen(end, "rb", buffering=0)
        self.pid = int(self._line())
        if not kept:
            leftovers.note(self)

    def __str__(self) -> str:
        return f"process {self.pid}: {self.args}"

    def _line(self) -> bytes:
        line = b""
        while not line.endswith(b"\n"):
            part = self._end.read(1)
            if not part:
                raise ChildProcessError(f"the server that forks ended before {self.args}")
            line += part
        return line

    def poll(self) -> int | None:
        """Return the exit status; None while the process runs."""
        return self._ended_within(0)

    def wait(self, timeout: float) -> int:
        """Wait for the process, and return its exit status. `timeout`, in seconds, grows with the
        load.

        Raises:
            subprocess.TimeoutExpired: the process took longer, and was killed.
        """
        deadline = Deadline(timeout)
        while (status := self._ended_within(min(1.0, deadline.left))) is None:
            if deadline.has_passed():
                self.end()
                raise subprocess.TimeoutExpired(self.args, deadline.waited)
        return status

    def _ended_within(self, seconds: float) -> int | None:
        if self.returncode is None:
            with selectors.DefaultSelector() as selector:
                selector.register(self._end, selectors.EVENT_READ)
                if not selector.select(seconds):
                    return None
            status, cpu_seconds = self._line().split()
            self.returncode = os.waitstatus_to_exitcode(int(status))
            self.cpu_seconds = float(cpu_seconds)
            forked_cpu_seconds[0] += self.cpu_seconds
            self._end.close()
        return self.returncode

    def is_running(self) -> bool:
        """Return whether the process runs."""
        return self.poll() is None

    def send_signal(self, number: int) -> None:
        """Send the signal `number` to the process, unless the process has ended."""
        if self.is_running():
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL to this process only."""
        self.send_signal(signal.SIGKILL)

    def end(self) -> None:
        """Kill the process and all processes that it started."""
        if self.is_running():
            kill_family(self.pid)
        assert self._ended_within(END_SECONDS) is not None, f"{self} outlives SIGKILL"


forked_cpu_seconds = [0.0]
"""Processor time of all forked processes that have ended. The system counts only direct
children.
"""


waiting_servers: list[int] = []
"""The pids of child processes that wait for the processes they fork. The system counts the
processor time of these only when the server has ended.
"""


class _Server:
    """A server process with `modules` imported, and the socket for requests to it.

    The server for TORCH trains a model before the first request. The server for DEEPSPEED does not,
    because programs of others, with which our results are compared, must start as usual.
    """

    def __init__(self, modules: Sequence[str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._owner = os.getpid()
        with theirs:
            self._process = Started(
                [sys.executable, "-P", str(SERVER), str(theirs.fileno()), *modules],
                kept=True,
                env={**_without_python_path(), **SAME_FOR_ALL, TOKEN: NO_TOKEN},
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )

    def start(
        self,
        request: Mapping[str, Any],
        out: IO[bytes],
        err: IO[bytes],
        kept: bool,
    ) -> Forked:
        """Start the program that `request` describes."""
        mine, theirs = os.pipe()
        try:
            data = json.dumps(request).encode()
            files = [out.fileno(), err.fileno(), theirs]
            socket.send_fds(self._socket, [data], files)
        finally:
            os.close(theirs)
        return Forked(request["arguments"], mine, kept=kept)

    @property
    def is_own(self) -> bool:
        """Whether this process has started the server."""
        return os.getpid() == self._owner

    def close(self) -> None:
        """Close the socket of the server.

        If no other process has the socket, the server and all processes that it has started end.
        """
        self._socket.close()
        if self.is_own:
            before = _children_cpu_seconds()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECONDS)
            # The system now counts all that the server had forked, which is counted already.
            forked_cpu_seconds[0] -= _children_cpu_seconds() - before


def _children_cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _without_python_path() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


_servers: dict[Sequence[str], _Server] = {}
_making = threading.Lock()


def start(
    modules: Sequence[str],
    arguments: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    out: IO[bytes],
    err: IO[bytes] | None = None,
    kept: bool = False,
) -> Forked:
    """Start `python ARGUMENTS` in the directory `cwd` with the environment `env`.

    `arguments` are `-P SCRIPT ...` or `-m MODULE ...`. The process has `modules` already imported.
    Its output goes to `out`, and its errors go to `err` (None: to `out`).
    """
    with _making:  # a second server for the same modules would end the first and its processes
        server = _server(modules)
    request = {"arguments": list(arguments), "cwd": str(cwd), "env": dict(env)}
    return server.start(request, out, err or out, kept=kept)


def share(modules: Sequence[str]) -> None:
    """Start the server for `modules`, so that processes forked from this process use it, too.

    The server imports the modules while this process continues.
    """
    with _making:
        _server(modules)


def _server(modules: Sequence[str]) -> _Server:
    if modules not in _servers:
        _servers[modules] = _Server(modules)
    return _servers[modules]


def output(
    modules: Sequence[str], arguments: Sequence[str], *, env: Mapping[str, str], timeout: float
) -> str:
    """Run a program until it ends, and return its output; see `start`.

    Raises:
        AssertionError: its exit status is not 0.
    """
    with tempfile.TemporaryFile() as out:
        status = start(modules, arguments, cwd=Path.cwd(), env=env, out=out).wait(timeout)
        out.seek(0)
        text = out.read().decode()
    assert status == 0, text
    return text


def close_servers() -> None:
    """Close all servers that this process uses, the newest one first."""
    while _servers:
        _servers.popitem()[1].close()


def close_server(modules: Sequence[str]) -> None:
    """Close the server for `modules`, if this process has started it."""
    server = _servers.get(modules)
    if server is not None and server.is_own:
        del _servers[modules]
        server.close()
