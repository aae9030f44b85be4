"""The number of the queue's last change, and of its newest job, in a small file next to it.

Each number in it was committed: it is written after the commit. It is never flushed, so it may be
behind after a power loss. A queue that knows fewer changes is not the current one: its log was
lost, or an older copy was restored. The number of the newest job is not used again, even if all
else of that job is gone.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from zerotools.jobs.client.queue_copies import DATABASE, LAST_CHANGE
from zerotoolsd.supervisor.durable import open_regular

_LARGEST = 2**53


class LastChange:
    """The file of one state directory."""

    def __init__(self, state_dir: Path, number: int, newest_job: int) -> None:
        """Open the file. Raises OSError if it cannot be made."""
        flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd: int | None = os.open(state_dir / LAST_CHANGE, flags, 0o600)
        self._newest_job = 0
        self.note(number, newest_job)

    def note(self, number: int, newest_job: int = 0) -> None:
        """Record that change `number` is committed, and the number of the newest job."""
        self._newest_job = max(self._newest_job, newest_job)
        if self._fd is not None:
            with suppress(OSError):  # it only helps to find what went wrong
                os.pwrite(self._fd, b"%020d\n%020d\n" % (number, self._newest_job), 0)

    def close(self) -> None:
        """Close the file; a second call has no effect."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd = None


def last_change(state_dir: Path) -> int:
    """Return the number of the last change that any queue here has committed, as far as is
    known."""
    return _read(state_dir / LAST_CHANGE)[0]


def newest_job(state_dir: Path) -> int:
    """Return the highest number that a job of any queue here has had, as far as is known.

    Queues that were moved aside count too (`zerotools.db.before-…`, `zerotools.db.damaged-…`).
    """
    ending = LAST_CHANGE.removeprefix(DATABASE)
    return max((_read(path)[1] for path in state_dir.glob(f"{DATABASE}*{ending}")), default=0)


def _read(path: Path) -> tuple[int, int]:
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            number, _, job = file.read(64).partition(b"\n")
        found = int(number), int(job or b"0")
    except (OSError, ValueError):
        return 0, 0
    return found[0], found[1] if 0 <= found[1] < _LARGEST else 0
