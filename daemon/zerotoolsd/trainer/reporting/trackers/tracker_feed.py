"""Sends rank 0's data to the process of a tracker. Training waits for that process only briefly at
the end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from queue import SimpleQueue
from typing import Any

PROGRAM = Path(__file__).with_name("tracker_program.py")
MOST_WAITING = 20_000
"""Limit of steps that wait for a tracker; further ones are not logged there."""
CLOSE_SECONDS = 30.0
SAID = 3
"""Exit status of the process after it has logged the reason."""
_NOT_ITS_OWN = ("ZEROTOOLS_NOTIFY", "ZEROTOOLS_PULSE", "ZEROTOOLS_TOKEN")


class TrackerFeed:
    """The process of the tracker `name`, which gets lines. Its output is in the rank's log.

    `opening` describes the run to log; see `tracker_program`.
    """

    def __init__(
        self,
        name: str,
        opening: Mapping[str, Any],
        *,
        command: Sequence[str] = (sys.executable, "-P", str(PROGRAM)),
        close_seconds: float = CLOSE_SECONDS,
        most_waiting: int = MOST_WAITING,
    ) -> None:
        """Start the process. Raises OSError if it cannot be started."""
        self.name = name
        self._close_seconds = close_seconds
        self._most_waiting = most_waiting
        self._lines: SimpleQueue[bytes | None] = SimpleQueue()
        self._failed = False
        self._end = "failed"
        environment = {n: v for n, v in os.environ.items() if n not in _NOT_ITS_OWN}
        self._process = subprocess.Popen(
            (*command, name), stdin=subprocess.PIPE, env=environment, bufsize=0
        )
        self._thread = threading.Thread(target=self._write, name=f"to {name}", daemon=True)
        self._thread.start()
        self._put(opening)

    def append(self, step: int, fields: Mapping[str, float]) -> str | None:
        """Hand over the numbers of `step`; the first time that they are lost, why."""
        problem = None
        if (ended := self._process.poll()) is not None:
            problem = "" if ended == SAID else f"its process ended ({ended})"
        elif self._lines.qsize() >= self._most_waiting:
            problem = f"{self._most_waiting} steps wait for it already, and it makes no progress"
        else:
            self._put({"step": step, "fields": fields})
        if problem is None or self._failed:
            return None
        self._failed = True
        return problem or None

    def ends_as(self, end: str) -> None:
        """Set the end of the run: `done` or `stopped`; the default is `failed`."""
        self._end = end

    def close(self) -> str | None:
        """Let the process write its data and end; return why it did not, or None."""
        deadline = time.monotonic() + self._close_seconds
        self._put({"end": self._end})
        self._lines.put(None)
        self._thread.join(self._close_seconds)
        try:
            self._process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            return f"it did not end within {self._close_seconds:g} s, and was ended"
        ended = self._process.returncode
        return None if self._failed or ended in (0, SAID) else f"its process ended ({ended})"

    def _put(self, tree: Mapping[str, Any]) -> None:
        self._lines.put(json.dumps(tree, default=str).encode() + b"\n")

    def _write(self) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        try:
            while (line := self._lines.get()) is not None:
                view = memoryview(line)
                while view:
                    view = view[pipe.write(view) :]
        except OSError:  # it has ended, which `append` and `close` find
            return
        finally:
            pipe.close()
