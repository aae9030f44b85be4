"""Reads and changes the table `drain`, which stores whether no job may start, and why."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

from zerotoolsd.interface.start_conditions import Drain
from zerotoolsd.queue.sql_values import shortened_reason

RunSql = Callable[..., sqlite3.Cursor]


class DrainTable:
    """Reads and changes the table `drain`, in the transaction of the caller. The table has one
    row while no job may start.
    """

    def __init__(self, run: RunSql) -> None:
        self._sql = run

    def get(self) -> Drain | None:
        """Return the current drain; None if jobs may start."""
        row = self._sql("SELECT since, uid, why FROM drain").fetchone()
        return None if row is None else Drain(**row)

    def put(self, drain: Drain | None) -> None:
        """Set the drain, so that no job starts. With None, remove the drain."""
        self._sql("DELETE FROM drain")
        if drain is not None:
            values = (drain.since, drain.uid, shortened_reason(drain.why))
            self._sql("INSERT INTO drain (one, since, uid, why) VALUES (1, ?, ?, ?)", values)
