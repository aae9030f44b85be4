"""Starts Python programs that have torch imported already: `forkserver.py SOCKET MODULE...`.

Importing torch and transformers takes a rank seconds of processor time, and hundreds of ranks are
started. This process imports them once and forks. What it knows of a program is what its command
line would say, and a forked one goes through the interpreter's own exit.

One request is a datagram: a JSON object with `arguments` (of `python`), `cwd` and `env`, and two
descriptors, for its output and for its end. The latter is told the pid at once and, at the end,
the status of `waitpid` and the seconds of processor time. All programs are killed when the socket
closes. Standard library alone, but for the modules; there must be one thread.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

MAX_BYTES = 1 << 20


class Server:
    """Forks what is asked for, and tells of its end."""

    def __init__(self, requests: socket.socket) -> None:
        self.requests = requests
        self.selector = selectors.DefaultSelector()
        self.selector.register(requests, selectors.EVENT_READ)
        self.reports: dict[int, tuple[int, int]] = {}

    def serve(self) -> dict[str, Any] | None:
        """Go on until the socket closes; in a forked process, return what it shall do."""
        while True:
            for key, _ in self.selector.select():
                if key.fileobj is not self.requests:
                    self._reap(key.fd)
                    continue
                data, (out, report), *_ = _received(self.requests)
                if not data:
                    self._end()
                    return None
                if self._fork(out, report):
                    return dict(json.loads(data))

    def _fork(self, out: int, report: int) -> bool:
        assert Path("/proc/self/task").stat().st_nlink == 3, (
            "a process with threads cannot be forked"
        )
        pid = os.fork()
        if pid == 0:
            self.selector.close()
            self.requests.close()
            for pidfd, (_, end) in self.reports.items():
                os.close(pidfd)
                os.close(end)
            os.close(report)
            os.setsid()
            for stream in (1, 2):
                os.dup2(out, stream)
            os.close(out)
            return True
        os.close(out)
        os.write(report, f"{pid}\n".encode())
        pidfd = os.pidfd_open(pid)
        self.reports[pidfd] = (pid, report)
        self.selector.register(pidfd, selectors.EVENT_READ)
        return False

    def _reap(self, pidfd: int) -> None:
        self.selector.unregister(pidfd)
        pid, report = self.reports.pop(pidfd)
        _, status, used = os.wait4(pid, 0)
        with suppress(BrokenPipeError):
            os.write(report, f"{status} {used.ru_utime + used.ru_stime}\n".encode())
        os.close(report)
        os.close(pidfd)

    def _end(self) -> None:
        for pid, _ in self.reports.values():
            os.kill(pid, signal.SIGKILL)


def _received(requests: socket.socket) -> tuple[bytes, list[int]]:
    data, descriptors, *_ = socket.recv_fds(requests, MAX_BYTES, 2)
    return data, descriptors or [-1, -1]


def run(request: dict[str, Any]) -> None:
    """Be the program: `-m MODULE ...`, or `-P SCRIPT ...`."""
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    how, what, *rest = request["arguments"]
    sys.argv = [what, *rest]
    if how == "-m":
        sys.path[:0] = [request["cwd"], *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(what, run_name="__main__")


def remember_processor() -> None:
    """DeepSpeed's Adam on the CPU asks three times what processor there is, a second each."""
    import cpuinfo

    found = cpuinfo.get_cpu_info()
    cpuinfo.get_cpu_info = lambda: found


def main() -> None:
    """The command line."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    for name in sys.argv[2:]:
        importlib.import_module(name)
    if "deepspeed" in sys.argv:
        remember_processor()
    gc.freeze()  # what is imported is not looked at again, and its pages stay shared
    if (request := Server(requests).serve()) is not None:
        run(request)


if __name__ == "__main__":
    main()
