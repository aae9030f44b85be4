"""Stores a limited number of notices that wait for delivery. A notice is written in the transaction
of the change that it reports.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

RunSql = Callable[..., sqlite3.Cursor]

WEBHOOK, COMMAND, DESTINATION = "webhook", "command", "place"
DELIVERED, DROPPED, EXPIRED = "delivered", "dropped", "expired"
"""The ends of notices that are counted. Dropped: too many notices waited. Expired: the delivery
took too long.
"""
_MOST_TROUBLE = 300
_HOLDING_TRIES = 3
"""After this many failed deliveries, a notice no longer delays later notices of its job."""
_LONGEST_WAIT = 7200.0
"""Each waiting notice is tried again within this many seconds."""


@dataclass(frozen=True, kw_only=True)
class Notice:
    """A notice about a job, to be sent to one recipient.

    Attributes:
        key: identifies the notice, and is the same for each try to deliver it.
        target: an address, a program with its arguments as JSON, or the name of a destination.
        body: the notice as JSON.
        next_at: the time of the next try to deliver the notice.
        tries, trouble: the number of failed deliveries, and the error of the last failed delivery.

    Times are in seconds since the epoch.
    """

    key: str
    uid: int
    job_id: int
    notice: str
    channel: str
    target: str
    body: str
    created: float
    next_at: float
    tries: int = 0
    trouble: str | None = None
    id: int = 0


class Outbox:
    """The table of notices that wait for delivery.

    At most `most_per_user` notices of one user and `most` notices of all users can wait. If
    there are more, the oldest are dropped.
    """

    def __init__(
        self, sql: RunSql, transaction: Callable[[], AbstractContextManager[None]]
    ) -> None:
        self._sql = sql
        self._transaction = transaction
        self.most_per_user, self.most = 200, 5000

    def add(self, notices: Iterable[Notice]) -> None:
        """Add notices, in the transaction of the caller. A notice with a key that is already in
        the table is ignored.
        """
        for each in notices:
            added = self._sql(
                "INSERT OR IGNORE INTO outbox (key, uid, job_id, notice, channel, target, body,"
                " created, next_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (
                    *(each.key, each.uid, each.job_id, each.notice, each.channel),
                    *(each.target, each.body, each.created, each.next_at),
                ),
            )
            if added.rowcount:
                self._drop_oldest("WHERE uid = ?", (each.uid,), self.most_per_user)
                self._drop_oldest("", (), self.most)

    def put_once(self, job_id: int, name: str, notices: Iterable[Notice]) -> None:
        """Call `add_once` in a separate transaction."""
        with self._transaction():
            self.add_once(job_id, name, notices)

    def add_once(self, job_id: int, name: str, notices: Iterable[Notice]) -> None:
        """Add notices that report the condition `name` of a job, in the transaction of the caller,
        unless this condition is already reported.

        The condition counts as reported until `forget` is called, even after a restart of the
        daemon.
        """
        if self._sql("INSERT OR IGNORE INTO reported VALUES (?, ?)", (job_id, name)).rowcount:
            self.add(notices)

    def forget(self, job_id: int, name: str) -> None:
        """Record that the condition `name` of a job is over, so that its next occurrence is
        reported again.
        """
        with self._transaction():
            self._sql("DELETE FROM reported WHERE job_id = ? AND name = ?", (job_id, name))

    def removed(self, job_id: int) -> None:
        """Forget all reported conditions of a removed job, in the transaction of the caller."""
        self._sql("DELETE FROM reported WHERE job_id = ?", (job_id,))

    def _drop_oldest(self, where: str, values: tuple[object, ...], most: int) -> None:
        gone = self._sql(
            f"DELETE FROM outbox WHERE id IN (SELECT id FROM outbox {where}"
            " ORDER BY id DESC LIMIT -1 OFFSET ?)",
            (*values, most),
        ).rowcount
        if gone:
            self._count(DROPPED, gone)

    def due(self, now: float, limit: int) -> list[Notice]:
        """Return at most `limit` notices that are due, the oldest first.

        A recipient gets the notices of a job in order: a notice is due only after each earlier
        notice was delivered, or has failed `_HOLDING_TRIES` times.

        At most a quarter of `limit` are notices of the same user. Recipients without a failed
        delivery come first, and each recipient gets one notice before any gets a second. So a slow
        address delays neither other users nor other recipients. A notice is also due if it would
        have to wait for more than `_LONGEST_WAIT` seconds, which means that the clock was set back.
        """
        rows = self._sql(
            "SELECT * FROM (SELECT *, row_number() OVER (PARTITION BY uid ORDER BY refused, turn,"
            " id) AS place FROM (SELECT *, row_number() OVER (PARTITION BY uid, channel, target"
            " ORDER BY id) AS turn FROM (SELECT *, max(tries > 0) OVER (PARTITION BY channel,"
            " target) AS refused, count(*) FILTER (WHERE tries < ?) OVER (PARTITION BY job_id,"
            " channel, target ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
            " AS ahead FROM outbox) WHERE ahead = 0 AND (next_at <= ? OR next_at > ?)))"
            " WHERE place <= ? ORDER BY refused, id LIMIT ?",
            (_HOLDING_TRIES, now, now + _LONGEST_WAIT, max(1, limit // 4), limit),
        )
        return [_notice(row) for row in rows]

    def delivered(self, notice: Notice, now: float) -> None:
        """Mark a notice as delivered. Other notices that the same recipient refused before are due
        at once, because the recipient accepts notices now.
        """
        with self._transaction():
            self._remove(notice, DELIVERED)
            self._sql(
                "UPDATE outbox SET next_at = ? WHERE channel = ? AND target = ? AND tries > 0"
                " AND next_at > ?",
                (now, notice.channel, notice.target, now),
            )

    def expired(self, notice: Notice) -> None:
        """Mark a notice as expired: it was not delivered in time."""
        with self._transaction():
            self._remove(notice, EXPIRED)

    def _remove(self, notice: Notice, what: str) -> None:
        if self._sql("DELETE FROM outbox WHERE id = ?", (notice.id,)).rowcount:
            self._count(what, 1)

    def failed(self, notice: Notice, next_at: float, trouble: str) -> None:
        """Record that a delivery failed with the error `trouble`. The next try is at `next_at`
        (seconds since the epoch).
        """
        with self._transaction():
            self._sql(
                "UPDATE outbox SET tries = tries + 1, next_at = ?, trouble = ? WHERE id = ?",
                (next_at, trouble[:_MOST_TROUBLE], notice.id),
            )

    def postpone(self, channel: str, target: str, until: float) -> None:
        """Let all notices to the recipient `target` wait until the time `until` (seconds since the
        epoch).
        """
        with self._transaction():
            self._sql(
                "UPDATE outbox SET next_at = ? WHERE channel = ? AND target = ? AND next_at < ?",
                (until, channel, target, until),
            )

    def of_job(self, job_id: int) -> list[Notice]:
        """Return the waiting notices of a job, the oldest first."""
        rows = self._sql("SELECT * FROM outbox WHERE job_id = ? ORDER BY id", (job_id,))
        return [_notice(row) for row in rows]

    def counts(self) -> dict[str, int]:
        """Return the numbers of notices, keyed by delivered, dropped, expired and waiting."""
        found = {row["what"]: row["number"] for row in self._sql("SELECT * FROM outbox_count")}
        waiting = self._sql("SELECT count(*) AS number FROM outbox").fetchone()["number"]
        return {**dict.fromkeys((DELIVERED, DROPPED, EXPIRED), 0), **found, "waiting": waiting}

    def _count(self, what: str, number: int) -> None:
        self._sql(
            "INSERT INTO outbox_count (what, number) VALUES (?, ?)"
            " ON CONFLICT (what) DO UPDATE SET number = number + excluded.number",
            (what, number),
        )


def _notice(row: Mapping[str, Any]) -> Notice:
    return Notice(**{name: row[name] for name in Notice.__dataclass_fields__})
