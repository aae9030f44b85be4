"""A zerotoolsd that notes how much processor time each step of its loop takes.

    STEPS=FILE python -m benchmarks.queue.steps OPTIONS_OF_ZEROTOOLSD

Each step of more than a millisecond becomes a line of FILE: when it ended, and what it took. Unlike
the time that a client waits, this does not depend on what else the machine does.
"""

from __future__ import annotations

import os
import sys
import time
from asyncio import events
from pathlib import Path

from zerotoolsd.__main__ import main

FILE = "STEPS"
LEAST_SECONDS = 0.001


class Steps:
    """The steps that are noted in a file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._seen = 0.0

    def longest(self) -> float:
        """Return the processor time of the longest step since it was asked last, in seconds."""
        lines = [line.split() for line in self._file.read_text().splitlines()]
        new = [(float(ended), float(took)) for ended, took in lines if float(ended) > self._seen]
        self._seen = time.monotonic()
        return max((took for _, took in new), default=0.0)


def note_steps(path: str) -> None:
    """Note the steps of every loop of this process in the file at `path`."""
    run, process = events.Handle._run, os.getpid()
    file = Path(path).open("a", buffering=1)  # noqa: SIM115, as long as the process

    def noted(handle: events.Handle) -> None:
        began = time.thread_time()
        run(handle)
        if (took := time.thread_time() - began) > LEAST_SECONDS and os.getpid() == process:
            file.write(f"{time.monotonic():.6f} {took:.6f}\n")

    events.Handle._run = noted  # type: ignore[assignment,method-assign]


if __name__ == "__main__":
    note_steps(os.environ[FILE])
    sys.exit(main())
