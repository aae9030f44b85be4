"""Runs changes of the queue's database as transactions. Several changes can form one transaction.

Normally every change is one transaction (`one`). Inside the context `together`, all changes form
one transaction, which is committed as a whole. But if one of the changes raises an error, only this
change is rolled back, and the caller may continue with the other changes. Some changes are followed
by an action outside the database, such as a log line or a signal to a process. `when_committed`
calls these actions in order, after the commit. Outside of `together`, it calls them at once. An
example:

    together                       BEGIN IMMEDIATE
      change of job 7              SAVEPOINT, UPDATE, INSERT, RELEASE
      change of job 8, refused     SAVEPOINT, ROLLBACK TO
      change of job 9              SAVEPOINT, UPDATE, INSERT, RELEASE
                                   COMMIT; then the actions for 7 and 9
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Committed = Callable[[float], None]
"""A function that is called after each commit, with the duration of the commit in seconds."""
Undone = Callable[[BaseException], None]
"""A function that is called with the reason after a transaction was rolled back."""


class Transactions:
    """The transactions of one database connection. The connection must not commit by itself. `run`
    executes a statement.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        run: Callable[[str], object],
        committed: Committed,
        undone: Undone,
    ) -> None:
        self._connection, self._run = connection, run
        self._committed, self._undone = committed, undone
        self._is_together = False
        self._then: list[Callable[[], None]] = []

    @contextmanager
    def one(self) -> Iterator[None]:
        """Return a context manager that runs its body as one transaction. Inside `together`, the
        body is a part of the common transaction.
        """
        if self._is_together:
            with self._part():
                yield
            return
        if self._connection.in_transaction:  # undoing the one before failed, for lack of memory
            self._run("ROLLBACK")
        self._run("BEGIN IMMEDIATE")
        try:
            yield
            began = time.perf_counter()
            self._run("COMMIT")
            self._committed(time.perf_counter() - began)
        except BaseException as error:  # undone, and raised again
            try:
                if self._connection.in_transaction:
                    self._run("ROLLBACK")
            finally:
                self._undone(error)
            raise

    @contextmanager
    def together(self) -> Iterator[None]:
        """Return a context manager that runs all changes in its body as one transaction. It must
        not be nested.
        """
        try:
            with self.one():
                self._is_together = True
                try:
                    yield
                finally:
                    self._is_together = False
        except BaseException:
            self._then.clear()
            raise
        then, self._then = self._then, []
        for act in then:
            act()

    def when_committed(self, act: Callable[[], None]) -> None:
        """Call `act` after the current changes are on the disk. If these changes are rolled back,
        `act` is never called.
        """
        if self._is_together:
            self._then.append(act)
        else:
            act()

    @contextmanager
    def _part(self) -> Iterator[None]:
        self._run("SAVEPOINT part")
        followed = len(self._then)
        try:
            yield
        except BaseException:
            del self._then[followed:]
            if self._connection.in_transaction:  # a full disk undoes all of it
                self._run("ROLLBACK TO part")
                self._run("RELEASE part")
            raise
        self._run("RELEASE part")
