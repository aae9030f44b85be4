"""The log of one rank, read on and on."""

from __future__ import annotations

import codecs
from collections import deque
from dataclasses import dataclass

from zerotools.cli.job_views.describe import Job, title
from zerotools.jobs.client.daemon_client import DaemonClient

FIRST_BYTES, PART_BYTES = 1 << 16, 1 << 20
MOST_LINES = 5000
LONGEST_LINE = 4096


@dataclass(frozen=True)
class LogSeen:
    """The last lines of a log; `dropped` lines were before them."""

    job_id: int
    rank: int
    title: str
    lines: tuple[str, ...] = ()
    dropped: int = 0


class LogFollower:
    """Of one rank of a job; when another attempt begins, that one's."""

    def __init__(self, client: DaemonClient, job: Job, rank: int) -> None:
        self._client = client
        self._job = job
        self._rank = rank
        self._attempt = 0
        self._offset: int | None = None
        self._lines: deque[str] = deque(maxlen=MOST_LINES)
        self._count = 0
        self._rest = ""
        self._decode = codecs.getincrementaldecoder("utf-8")("replace").decode

    def read(self) -> LogSeen:
        """Return the current contents. Raises ZerotoolsError."""
        while True:
            offset = -FIRST_BYTES if self._offset is None else self._offset
            part = self._client.logs(
                self._job["id"], rank=self._rank, offset=offset, limit=PART_BYTES
            )
            if part.attempt != self._attempt:
                another = self._attempt > 0
                self._attempt, self._offset, self._rest = part.attempt, None, ""
                if another:
                    self._add(f"--- attempt {part.attempt} ---")
                    continue
            self._offset = part.next_offset
            self._take(self._decode(part.data))
            if len(part.data) < PART_BYTES:
                return self._seen()

    def _take(self, text: str) -> None:
        """Take text: redraws of a progress bar become lines, and a line without an end is shown as
        it is."""
        *whole, self._rest = (self._rest + text.replace("\r\n", "\n").replace("\r", "\n")).split(
            "\n"
        )
        for line in whole:
            if line.strip():
                self._add(line)
        self._rest = self._rest[:LONGEST_LINE]

    def _add(self, line: str) -> None:
        self._lines.append(line.expandtabs()[:LONGEST_LINE])
        self._count += 1

    def _seen(self) -> LogSeen:
        lines = (*self._lines, *([self._rest] if self._rest.strip() else ()))
        name = f"log of {title(self._job)}, rank {self._rank}"
        name += f", attempt {self._attempt}" if self._attempt > 1 else ""
        return LogSeen(self._job["id"], self._rank, name, lines, self._count - len(self._lines))
