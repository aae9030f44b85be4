"""Reads GPUs through NVML in a child process, because the driver may hang.

`NvmlProbe` has a child process (`zerotools.sensors.nvml_probe`) and gives it a deadline for each
reading. A child that misses the deadline is killed, except before its first answer: without
persistence mode the driver needs some seconds to initialise each GPU, and would begin again in a
new child. So the first answer may take `FIRST_ANSWER_SECONDS`, and readings before this answer
return an error. A child that hangs in the driver cannot be killed. No other child is started until
it has ended, because the new child would hang as well.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from zerotools.sensors.snapshot import Gpu

DEADLINE_SECONDS = 2.0
START_SECONDS = 10.0
FIRST_ANSWER_SECONDS = 120.0
"""The time in seconds that a child has for its first answer. Readings before this answer
return an error.
"""
REAP_SECONDS = 0.5
MAX_BACKOFF_SECONDS = 60.0
LONGEST_ANSWER = 4 << 20
PROBE_COMMAND = (sys.executable, "-P", str(Path(__file__).with_name("nvml_probe") / "entry.py"))


@dataclass(frozen=True, slots=True)
class GpuReading:
    """The GPUs as they were `age_seconds` seconds ago (None: they were never read).

    With an `error`, they are the last known GPUs, and may have changed since. `is_silent` is True
    if the driver has not answered yet.
    """

    gpus: tuple[Gpu, ...]
    error: str | None
    age_seconds: float | None
    is_silent: bool = False


class GpuProbe(Protocol):
    """The interface of an object that reads the state of the GPUs for a snapshot."""

    def begin(self) -> None:
        """Start the first reading without waiting for it."""
        ...

    def read(self) -> GpuReading:
        """Return the GPUs within a few seconds. If they cannot be read, the result has an error."""
        ...

    def close(self) -> None:
        """End the probe's child process, if it has one."""
        ...


class ProbeFailed(Exception):
    """The child process failed, or its answer cannot be used. The message has the reason."""


class ProbeSilent(ProbeFailed):
    """The child process did not answer in time."""


class NvmlProbe:
    """A `GpuProbe` with a child process. Not for use by several threads at once.

    `popen` starts the child with `command` and `environment`. `clock` returns monotonic seconds.
    """

    def __init__(
        self,
        *,
        deadline_seconds: float = DEADLINE_SECONDS,
        start_seconds: float = START_SECONDS,
        command: Sequence[str] = PROBE_COMMAND,
        environment: Mapping[str, str] | None = None,
        popen: type[subprocess.Popen[bytes]] = subprocess.Popen,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._deadline = deadline_seconds
        self._start_allowance = start_seconds
        self._command = list(command)
        self._environment = None if environment is None else dict(environment)
        self._popen = popen
        self._clock = clock
        self._child: subprocess.Popen[bytes] | None = None
        self._is_new = False
        self._first_asked: float | None = None
        """The time of the first request to the child, until the child has answered it; then
        None.
        """
        self._stuck: subprocess.Popen[bytes] | None = None
        self._failures = 0
        self._failure = ""
        self._was_silent = False
        self._not_before = 0.0
        self._last: tuple[float, tuple[Gpu, ...]] | None = None

    def begin(self) -> None:
        """Start the first child, so that it gets ready while the caller does other work."""
        if self._child is None and self._stuck is None and not self._failures:
            with suppress(ProbeFailed):  # the reading reports it
                self._child = self._start()

    def read(self) -> GpuReading:
        """Ask the child for the GPUs. If no child runs, start one. After a failure, no child is
        started before a pause has passed."""
        if self._stuck is not None and self._stuck.poll() is not None:
            self._stuck = None
        if self._stuck is not None:
            return self._stale(
                f"NVML hangs: probe process {self._stuck.pid} cannot be ended (the NVIDIA driver "
                "does not answer); see dmesg; the machine may need a restart",
                is_silent=True,
            )
        if self._child is None and self._clock() < self._not_before:
            return self._stale(self._failure, is_silent=self._was_silent)
        try:
            gpus, error = self._ask()
        except ProbeFailed as failed:
            self._was_silent = isinstance(failed, ProbeSilent)
            if self._was_silent and self._may_still_begin():
                return self._stale(f"{failed} since it was started", is_silent=True)
            self._give_up(str(failed))
            return self._stale(self._failure, is_silent=self._was_silent)
        self._failures = 0
        if error is None:
            self._last = (self._clock(), gpus)
            return GpuReading(gpus, None, 0.0)
        return self._stale(error)

    def close(self) -> None:
        """End the child. A child that hangs in the driver ends when the driver answers."""
        child, self._child = self._child, None
        if child is not None:
            _end(child)

    def _may_still_begin(self) -> bool:
        since = self._first_asked
        return since is not None and self._clock() - since < FIRST_ANSWER_SECONDS

    def _stale(self, error: str, *, is_silent: bool = False) -> GpuReading:
        if self._last is None:
            return GpuReading((), error, None, is_silent)
        when, gpus = self._last
        return GpuReading(gpus, error, self._clock() - when, is_silent)

    def _ask(self) -> tuple[tuple[Gpu, ...], str | None]:
        if self._child is None:
            self._child = self._start()
        seconds = self._deadline
        if self._first_asked is None:
            _ask_for_line(self._child)
        if self._is_new:
            self._is_new, self._first_asked = False, self._clock()
            seconds += self._start_allowance
        answer = _line_of(self._child, time.monotonic() + seconds, seconds)
        self._first_asked = None
        try:
            tree = json.loads(answer)
            error = tree["error"]
            return tuple(Gpu.from_json(gpu) for gpu in tree["gpus"]), error
        except (ValueError, KeyError, TypeError) as invalid:
            raise ProbeFailed(
                f"no NVML: the answer of the probe is not valid ({invalid})"
            ) from invalid

    def _start(self) -> subprocess.Popen[bytes]:
        self._is_new, self._first_asked = True, None
        try:
            return self._popen(
                self._command,
                env=self._environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C on a terminal is for the parent to handle
            )
        except OSError as error:
            raise ProbeFailed(f"no NVML: the probe did not start ({error})") from error

    def _give_up(self, reason: str) -> None:
        """End the child. The pause before the next child doubles with each failure."""
        child, self._child = self._child, None
        if child is not None and not _end(child):
            self._stuck = child
        wait = min(2.0**self._failures, MAX_BACKOFF_SECONDS)
        self._failures += 1
        self._failure = reason
        self._not_before = self._clock() + wait


def _ask_for_line(child: subprocess.Popen[bytes]) -> None:
    assert child.stdin is not None
    try:
        child.stdin.write(b"\n")
        child.stdin.flush()
    except OSError:
        raise ProbeFailed(_ended(child)) from None


def _line_of(child: subprocess.Popen[bytes], until: float, seconds: float) -> bytes:
    """Return the line with which the child answers. Raises ProbeFailed if there is no line at the
    time `until`."""
    assert child.stdout is not None
    waiting = select.poll()
    waiting.register(child.stdout, select.POLLIN)
    answer = bytearray()
    while not answer.endswith(b"\n"):
        if not waiting.poll(max(until - time.monotonic(), 0) * 1000):
            raise ProbeSilent(f"NVML did not answer within {seconds:g} s")
        part = os.read(child.stdout.fileno(), 1 << 16)
        answer += part
        if not part:
            raise ProbeFailed(_ended(child))
        if len(answer) > LONGEST_ANSWER:
            raise ProbeFailed("no NVML: the answer of the probe is too long")
    return bytes(answer)


def _ended(child: subprocess.Popen[bytes]) -> str:
    _end(child)
    return f"no NVML: the probe process ended (status {child.returncode})"


def _end(child: subprocess.Popen[bytes]) -> bool:
    """Kill the child and wait for its end. Return False if it still exists after half a second."""
    child.kill()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None and not pipe.closed:
            with suppress(OSError):  # of unwritten data: the child has ended
                pipe.close()
    try:
        child.wait(REAP_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True
