"""Finds the checkpoints that jobs need, in a process that may hang in a file system.

The process reads the view of a job, one JSON object per line, and writes its needs: `[[path, path
with links followed, why], ...]`. If a directory of the job does not respond in time, the process is
killed, and a new one continues with the other jobs.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

DEADLINE_SECONDS, START_SECONDS = 5.0, 20.0
"""Seconds for one job, and for the start of a process."""
MOST_HANGING = 4
_KEYS = ("id", "name", "state", "latest_checkpoint", "attempts", "output_dir", "spec")


class NeededPath(NamedTuple):
    """A path that a job needs; `real`: with links followed."""

    path: str
    real: str
    why: str


class NeedLooker:
    """Runs one process after another."""

    def __init__(
        self,
        command: Sequence[str],
        deadline_seconds: float = DEADLINE_SECONDS,
        start_seconds: float = START_SECONDS,
    ) -> None:
        self._command = command
        self._deadline, self._start_allowance = deadline_seconds, start_seconds
        self._child: subprocess.Popen[bytes] | None = None
        self._received = b""
        self._hanging = 0

    def needs(self, job: Mapping[str, Any]) -> list[NeededPath] | None:
        """Return the paths that the job needs, or None if its directories do not respond."""
        if self._hanging >= MOST_HANGING:
            return None
        child = self._child
        if child is None:
            child = self._child = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            if self._answer(child, self._start_allowance) is None:
                self._give_up(child)  # its first line would be taken for an answer
                return None
        asked = json.dumps({key: job[key] for key in _KEYS if key in job}).encode() + b"\n"
        with suppress(BrokenPipeError):
            assert child.stdin is not None
            child.stdin.write(asked)
            child.stdin.flush()
        line = self._answer(child, self._deadline)
        if line is None:
            self._give_up(child)
            return None
        return [NeededPath(*each) for each in json.loads(line)]

    def _give_up(self, child: subprocess.Popen[bytes]) -> None:
        self._hanging += 1
        self._let_go(child)

    def _answer(self, child: subprocess.Popen[bytes], seconds: float) -> bytes | None:
        assert child.stdout is not None
        until = time.monotonic() + seconds
        while b"\n" not in self._received:
            left = max(0.0, until - time.monotonic())
            if not select.select([child.stdout], [], [], left)[0]:
                return None
            if not (data := os.read(child.stdout.fileno(), 1 << 16)):
                return None
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _let_go(self, child: subprocess.Popen[bytes]) -> None:
        """End it; one that hangs in the kernel ends when it can, and is not waited for."""
        child.kill()
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        child.returncode = 0  # else its end would be waited for
        self._child, self._received = None, b""

    def close(self) -> None:
        """End the process."""
        if (child := self._child) is not None:
            child.kill()
            child.wait()
            self._let_go(child)
