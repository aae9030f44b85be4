"""What the supervisor knows of its ranks, in memory that its keeper has too and no kill clears.

One line for each rank: its pid, its wait status once it has ended, and whether it was killed by us.
The status is noted here before the kernel is told to forget it (`reaper.reap`).
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass

_LINE = struct.Struct("=iiBB")
_STARTED, _ENDED = 1, 2


@dataclass(frozen=True)
class RankLine:
    """One rank. `pid` is None before it was started, `status` before it has ended."""

    pid: int | None
    status: int | None
    killed: bool


class RankLedger:
    """Made before the fork; both processes see what either writes."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._memory = mmap.mmap(-1, max(1, (ranks + 1) * _LINE.size))

    def begin(self) -> None:
        """The first rank is about to be started."""
        self._put(self._ranks, 0, 0, _STARTED, killed=False)

    @property
    def has_begun(self) -> bool:
        """Whether anything of the job can have run."""
        return bool(self._get(self._ranks)[2])

    def started(self, rank: int, pid: int) -> None:
        """Rank `rank` has this pid."""
        self._put(rank, pid, 0, _STARTED, killed=False)

    def ended(self, pid: int, status: int) -> None:
        """A child ended, a rank or another one."""
        for rank in range(self._ranks):
            found, _, state, killed = self._get(rank)
            if found == pid and state == _STARTED:
                self._put(rank, pid, status, _ENDED, killed=bool(killed))

    def killed(self, rank: int) -> None:
        """Rank `rank` is about to be killed by us."""
        pid, status, state, _ = self._get(rank)
        self._put(rank, pid, status, state, killed=True)

    def lines(self) -> list[RankLine]:
        """All ranks, by their number."""
        found = map(self._get, range(self._ranks))
        return [
            RankLine(pid if state else None, status if state == _ENDED else None, bool(killed))
            for pid, status, state, killed in found
        ]

    def _get(self, rank: int) -> tuple[int, int, int, int]:
        pid, status, state, killed = _LINE.unpack_from(self._memory, rank * _LINE.size)
        return pid, status, state, killed

    def _put(self, rank: int, pid: int, status: int, state: int, *, killed: bool) -> None:
        _LINE.pack_into(self._memory, rank * _LINE.size, pid, status, state, killed)
