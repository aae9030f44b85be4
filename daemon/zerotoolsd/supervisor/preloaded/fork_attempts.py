"""The fork server: it imports modules, reports that it is ready, and forks supervisors until its
daemon ends.

    server    {"ready": its memory in bytes, "seconds": time of the imports}, or {"refused": why}
    daemon    {"token": ..., "run_dir": ..., "env": ...}, and the attempt's log as a descriptor
    server    {"token": ..., "pid": ...}, and a pidfd of this process; or {"refused": why}

The server ends after it has sent `refused`. Each line is one message on a socket pair. The sockets
have no name, so no other process can connect.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from zerotoolsd.supervisor.main import main as supervise
from zerotoolsd.supervisor.preloaded.run_rank_in_fork import is_program, run_program_in_fork
from zerotoolsd.supervisor.spawn_child import execute_program

LONGEST = 1 << 16
_PR_SET_PDEATHSIG = 1
_OOM_SCORE = Path("/proc/self/oom_score_adj")
_FIRST = "800"
"""OOM score of a fork server. With this score, the kernel kills the server before any rank; a
restart of the server takes seconds.
"""


class AttemptForker:
    """Receives requests of the daemon on the socket `requests`, and forks one process for each
    requested attempt.
    """

    def __init__(self, requests: socket.socket, files: LoadedFiles, score: str) -> None:
        self._requests = requests
        self._files = files
        self._score = score
        self._selector = selectors.DefaultSelector()
        self._selector.register(requests, selectors.EVENT_READ)

    def serve(self) -> None:
        """Handle requests of the daemon until the daemon has ended or a request was refused."""
        while True:
            for key, _ in self._selector.select():
                if key.data is not None:
                    self._reap(key.fd, key.data)
                elif not self._handle_request():
                    return

    def _reap(self, pidfd: int, pid: int) -> None:
        self._selector.unregister(pidfd)
        os.waitpid(pid, 0)
        os.close(pidfd)

    def _handle_request(self) -> bool:
        data, descriptors, _, _ = socket.recv_fds(self._requests, LONGEST, 1)
        if not data or not descriptors:
            return False
        request = json.loads(data)
        why = why_not_forked()
        if why is None and (changed := self._files.changed()) is not None:
            why = f"{changed} has changed since it was imported"
        if why is not None:
            send_to_daemon(self._requests, {"token": request["token"], "refused": why})
            return False
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        pid = os.fork()
        if pid == 0:
            self._become_keeper(request, descriptors[0])
        os.close(descriptors[0])
        pidfd = os.pidfd_open(pid)  # it is not waited for before
        self._selector.register(pidfd, selectors.EVENT_READ, pid)
        answer = {"token": request["token"], "pid": pid}
        socket.send_fds(self._requests, [json.dumps(answer).encode()], [pidfd])
        return True

    def _become_keeper(self, request: Mapping[str, Any], log: int) -> NoReturn:
        status = 1
        try:
            os.setsid()
            for number in (1, 2):
                os.dup2(log, number)
            os.closerange(3, os.sysconf("SC_OPEN_MAX"))
            with suppress(OSError):
                _OOM_SCORE.write_text(self._score, "ascii")
            os.chdir("/")
            os.environ.clear()
            os.environ.update(request["env"])
            status = supervise([request["run_dir"]], execute_or_run)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)


def execute_or_run(argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Run `argv` in this forked process if it is a Python program, and execute it otherwise."""
    (run_program_in_fork if is_program(argv) else execute_program)(argv, env)


def send_to_daemon(requests: socket.socket, message: Mapping[str, Any]) -> None:
    """Send `message` to the daemon. Do nothing if the daemon has ended."""
    with suppress(OSError):
        requests.send(json.dumps(message).encode()[:LONGEST])


def main(modules: Sequence[str]) -> int:
    """Import `modules`, then handle the requests on the socket that is the standard input.
    Return the exit status.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    requests = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    score = _OOM_SCORE.read_text("ascii")
    with suppress(OSError):
        _OOM_SCORE.write_text(_FIRST, "ascii")
    began, began_ns = time.monotonic(), time.time_ns()
    try:
        import_all(modules)
    except BaseException as error:
        why = f"{modules} cannot be imported: {type(error).__name__}: {error}"
        send_to_daemon(requests, {"refused": why[:2000]})
        return 1
    gc.collect()
    gc.freeze()  # the collector skips imported objects, so their pages stay shared
    files = LoadedFiles.now()
    why_not = why_not_forked()
    if why_not is None and (path := files.newer(began_ns)) is not None:
        why_not = f"{path} has changed while it was imported"
    if why_not is not None:
        send_to_daemon(requests, {"refused": why_not})
        return 1
    seconds = time.monotonic() - began
    send_to_daemon(requests, {"ready": resident_bytes(), "seconds": seconds})
    AttemptForker(requests, files, score).serve()
    return 0


_INSTALLED = ("site-packages", "dist-packages")
_DEVICES = ("/dev/nvidia", "/dev/kfd", "/dev/dri")

Stamp = tuple[int, int, int, int]


class LoadedFiles(NamedTuple):
    """The files and directories from which modules were imported, as they were at the imports."""

    stamps: dict[str, Stamp]

    @classmethod
    def now(cls) -> LoadedFiles:
        """Return the current state of the files that this process uses: interpreter, modules,
        libraries, and the directories of packages.
        """
        paths = (sys.executable, *_modules(), *_mapped(), *_packages())
        found = {path: _stamp(path) for path in paths}
        return cls({path: stamp for path, stamp in found.items() if stamp is not None})

    def newer(self, time_ns: int) -> str | None:
        """Return the first file that was written after `time_ns` (nanoseconds since the epoch);
        None if no file was. This process may have imported an earlier version of such a file.
        """
        return next((p for p, stamp in self.stamps.items() if stamp[0] > time_ns), None)

    def changed(self) -> str | None:
        """Return the first file that was changed or deleted since its state was read; None if no
        file was.
        """
        return next((p for p, stamp in self.stamps.items() if _stamp(p) != stamp), None)


def _modules() -> Iterator[str]:
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if isinstance(path, str) and path.startswith("/"):
            yield path


def _mapped() -> Iterator[str]:
    for line in Path("/proc/self/maps").read_text("utf-8", "surrogateescape").splitlines():
        path = line.split(None, 5)[5:]
        if path and path[0].startswith("/") and not path[0].endswith(" (deleted)"):
            yield path[0]


def _packages() -> Iterator[str]:
    # Not every directory of PYTHONPATH: a program may often write into its own directory.
    return (path for path in sys.path if path.rstrip("/").endswith(_INSTALLED))


def _stamp(path: str) -> Stamp | None:
    try:
        found = os.stat(path)  # noqa: PTH116  # of thousands
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev


def why_not_forked() -> str | None:
    """Return why this process cannot be forked safely after its imports; None if it can."""
    threads = [Path(each, "comm").read_text() for each in Path("/proc/self/task").iterdir()]
    if len(threads) != 1:
        names = ", ".join(sorted(name.strip() for name in threads))
        return f"importing started threads ({names}), which a fork would lack"
    device = next((path for path in _open_paths() if path.startswith(_DEVICES)), None)
    if device is not None:
        return f"importing opened {device}, and after that a GPU cannot be used in a fork"
    return None


def _open_paths() -> Iterator[str]:
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        try:
            yield os.readlink(f"/proc/self/fd/{name}")  # noqa: PTH115
        except OSError:  # that of the listing itself
            continue


def resident_bytes() -> int:
    """Return the memory of this process in bytes, with pages that its forks share."""
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def import_all(names: Iterable[str]) -> None:
    """Import the modules in `names`. For a name of the form `MODULE:FUNCTION`, also call the
    function.

    Exceptions of the modules and functions are passed to the caller.
    """
    from importlib import import_module

    for name in names:
        module, _, function = name.partition(":")
        found = import_module(module)
        if function:
            getattr(found, function)()
