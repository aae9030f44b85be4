"""The number of the queue's last change, in a small file beside it.

Whatever it says was committed: it is written after the commit, and never flushed, so that after a
power loss it may lag behind. So a queue that knows fewer changes than it says is not the one that
was here: its log was lost, or an older copy was put in its place.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from zerotools.jobs.client.queue_copies import LAST_CHANGE


class LastChange:
    """The file of one state directory."""

    def __init__(self, state_dir: Path, number: int) -> None:
        """Raises OSError: it cannot be made."""
        flags = os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        self._fd: int | None = os.open(state_dir / LAST_CHANGE, flags, 0o600)
        self.note(number)

    def note(self, number: int) -> None:
        """Change `number` is committed."""
        if self._fd is not None:
            with suppress(OSError):  # it only helps to find what went wrong
                os.pwrite(self._fd, b"%020d\n" % number, 0)

    def close(self) -> None:
        """Let go of it; twice is harmless."""
        if self._fd is not None:
            os.close(self._fd)
        self._fd = None
