"""Starts processes as `subprocess` does. They end with the test that started them."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import psutil

from harness import leftovers
from harness.patience import patient

END_SECONDS = 20.0


class Started(subprocess.Popen[Any]):
    """A process in a new session. If `wait` reaches its timeout, the process is killed.

    `kept` is True if a fixture of a module or session ends the process, not the test that started
    it.
    """

    def __init__(self, command: Sequence[Any], *, kept: bool = False, **options: Any) -> None:
        super().__init__(command, **{"start_new_session": True, **options})
        if not kept:
            leftovers.note(self)

    def __str__(self) -> str:
        return f"process {self.pid}: {self.args!r}"

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the process, and return its exit status. `timeout`, in seconds, grows with the
        load.

        Raises:
            subprocess.TimeoutExpired: the process took longer, and was killed.
        """
        try:
            return super().wait(None if timeout is None else patient(timeout))
        except subprocess.TimeoutExpired:
            self.end()
            raise

    def is_running(self) -> bool:
        """Return whether the process runs."""
        return self.poll() is None

    def end(self) -> None:
        """Kill the process and all processes that it started."""
        if self.is_running():
            kill_family(self.pid)
        super().wait(END_SECONDS)
        for stream in (self.stdin, self.stdout, self.stderr):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()


def run(
    command: Sequence[Any], *, timeout: float, check: bool = False, **options: Any
) -> subprocess.CompletedProcess[Any]:
    """Run a command as `subprocess.run` does, and kill its descendants when it has ended.

    `timeout`, in seconds, grows with the load of the machine.
    """
    if options.pop("capture_output", False):
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    said = options.pop("input", None)
    if said is not None:
        options["stdin"] = subprocess.PIPE
    process = Started(command, **options)
    try:
        out, err = process.communicate(said, patient(timeout))
    finally:
        process.end()
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def kill_family(pid: int) -> None:
    """Send SIGKILL to a process and its descendants, including those in other sessions."""
    with suppress(psutil.NoSuchProcess):
        head = psutil.Process(pid)
        head.suspend()  # so that it starts no more of them
        for one in [*head.children(recursive=True), head]:
            with suppress(psutil.NoSuchProcess):
                one.kill()
