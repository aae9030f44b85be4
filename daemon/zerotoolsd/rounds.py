"""What a round of the daemon's loop does not end for, and what ends the daemon."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Awaitable, Callable

FAULT_SECONDS = 1.0
"""How often what could not be done is tried again."""
STARVED_ROUNDS = 5
"""After so many rounds one after another without memory the daemon ends: a new one has some."""

log = logging.getLogger(__name__)


class GuardedRounds:
    """One round after another; the jobs that run go on, whatever happens in one."""

    def __init__(self) -> None:
        self._starved = 0

    async def go(self, step: Callable[[], Awaitable[float]]) -> float:
        """One round; the seconds until the next is due. Raises MemoryError: it was the last of
        several for which there was no memory."""
        try:
            pause = await step()
        except MemoryError:
            self._starved += 1
            if self._starved == STARVED_ROUNDS:
                raise
            log.error("no memory is left, next try in %g s", FAULT_SECONDS)
            return FAULT_SECONDS
        except sqlite3.OperationalError as error:
            log.error("the queue cannot be written now, next try in %g s: %s", FAULT_SECONDS, error)
            return FAULT_SECONDS
        except Exception:  # no job's, or it would be held
            log.exception("a defect in zerotoolsd: next try in %g s", FAULT_SECONDS)
            return FAULT_SECONDS
        self._starved = 0
        return pause
