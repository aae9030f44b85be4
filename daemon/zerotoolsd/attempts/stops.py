"""What attempts were asked for: to save and stop, by a file in their run directories."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path

from zerotoolsd.accounts.rights import opened
from zerotoolsd.queue.rows import AttemptRow
from zerotoolsd.supervisor.ending.requests import write_request
from zerotoolsd.supervisor.plan import REQUEST, RUN

log = logging.getLogger(__name__)


class StopRequests:
    """Stops that were asked for, by the attempt's token; also those that nobody has heard yet."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._unheard: dict[str, str] = {}
        self._unwritten: dict[str, tuple[AttemptRow, str, str]] = {}
        """Those that could not be written down: attempt, reason, and what was in the way."""

    def write(self, attempt: AttemptRow, reason: str, grace_seconds: float | None = None) -> None:
        """Write down that the attempt is to stop; where that fails it is among `unwritten`."""
        self._since.setdefault(attempt.token, time.monotonic())
        before = self._unwritten.pop(attempt.token, None)
        try:
            with opened(Path(attempt.run_dir)) as base:
                write_request(base, reason, grace_seconds)
        except OSError as error:
            why = f"{Path(attempt.run_dir) / REQUEST}: {error.strerror}"
            if before is None or before[2] != why:
                log.error("job %d cannot be asked to stop yet: %s", attempt.job_id, why)
            self._unwritten[attempt.token] = (attempt, reason, why)
            self.keep(attempt, reason)

    def keep(self, attempt: AttemptRow, reason: str) -> None:
        """Its supervisor is to be asked once it is known."""
        self._unheard[attempt.token] = reason

    def take_unheard(self, attempt: AttemptRow) -> str | None:
        """The reason of a stop that was kept for its supervisor, once."""
        return self._unheard.pop(attempt.token, None)

    @property
    def unwritten(self) -> list[tuple[AttemptRow, str]]:
        """Attempts that could not be asked, with the reasons."""
        return [(attempt, reason) for attempt, reason, _ in self._unwritten.values()]

    def drop_unwritten(self, attempt: AttemptRow) -> None:
        """It is over, or asked when it is found again."""
        self._unwritten.pop(attempt.token, None)

    def since(self, attempt: AttemptRow) -> float | None:
        """Since when it has been asked, by the monotonic clock."""
        return self._since.get(attempt.token)

    def over(self, attempt: AttemptRow) -> None:
        """The attempt has ended."""
        self._since.pop(attempt.token, None)


def has_begun(run_dir: Path) -> bool:
    """Whether its supervisor takes SIGTERM for a request; its directory may have been removed."""
    try:
        with opened(run_dir) as base:
            return os.path.lexists(base / RUN) or not base.exists()
    except OSError:
        return False
