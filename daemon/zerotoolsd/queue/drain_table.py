"""The table `drain`: one row while nothing starts."""

from __future__ import annotations

from zerotoolsd.interface.queue_terms import Drain
from zerotoolsd.queue.changes import RunSql
from zerotoolsd.queue.values import short


class DrainTable:
    """The table, by `run`; a change is one of the caller's transaction."""

    def __init__(self, run: RunSql) -> None:
        self._sql = run

    def get(self) -> Drain | None:
        """Return the reason why no job starts; None if jobs start."""
        row = self._sql("SELECT since, uid, why FROM drain").fetchone()
        return None if row is None else Drain(**row)

    def put(self, drain: Drain | None) -> None:
        """Set the drain, or remove it with None."""
        self._sql("DELETE FROM drain")
        if drain is not None:
            values = (drain.since, drain.uid, short(drain.why))
            self._sql("INSERT INTO drain (one, since, uid, why) VALUES (1, ?, ?, ?)", values)
