from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from zerotoolsd.queue.transactions import Transactions


class Bench:
    """A database with one table, and what was said of its transactions."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.connection = connection
        self.commits, self.undone = 0, list[str]()
        self.transactions = Transactions(
            connection,
            connection.execute,
            self._committed,
            lambda error: self.undone.append(str(error)),
        )

    def _committed(self, seconds: float) -> None:
        assert seconds >= 0
        self.commits += 1

    def put(self, number: int, fails: str = "") -> None:
        with self.transactions.one():
            self.connection.execute("INSERT INTO t VALUES (?)", (number,))
            if fails:
                raise ValueError(fails)

    @property
    def numbers(self) -> list[int]:
        return [row[0] for row in self.connection.execute("SELECT n FROM t ORDER BY n")]


@pytest.fixture
def bench() -> Iterator[Bench]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE t (n INTEGER UNIQUE)")
        yield Bench(connection)


def test_one_change_is_committed_or_undone(bench: Bench) -> None:
    bench.put(1)
    with pytest.raises(ValueError, match="no"):
        bench.put(2, fails="no")
    assert (bench.numbers, bench.commits, bench.undone) == ([1], 1, ["no"])


def test_several_are_one_commit_and_a_refused_one_is_undone_alone(bench: Bench) -> None:
    said = list[int]()
    with bench.transactions.together():
        for number in (1, 2, 3):
            try:
                with bench.transactions.one():
                    bench.connection.execute("INSERT INTO t VALUES (?)", (number,))
                    bench.transactions.when_committed(lambda n=number: said.append(n))  # type: ignore[misc]
                    if number == 2:
                        raise ValueError("not this one")
            except ValueError:
                pass
        assert said == []
    assert (bench.numbers, bench.commits, said) == ([1, 3], 1, [1, 3])
    bench.transactions.when_committed(lambda: said.append(9))  # at once
    assert said == [1, 3, 9]


def test_all_or_none(bench: Bench) -> None:
    said = list[int]()

    def change() -> None:
        with bench.transactions.together():
            bench.put(1)
            bench.transactions.when_committed(lambda: said.append(1))
            raise ValueError("after all")

    with pytest.raises(ValueError, match="after all"):
        change()
    assert (bench.numbers, bench.commits, said, bench.undone) == ([], 0, [], ["after all"])
    bench.put(5)  # and what comes later is a transaction of its own again
    bench.transactions.when_committed(lambda: said.append(5))
    assert (bench.numbers, bench.commits, said) == ([5], 1, [5])


def test_what_undoes_all_of_it_is_not_undone_twice(bench: Bench) -> None:
    """As SQLite does on a full disk."""

    def change() -> None:
        with bench.transactions.together():
            bench.put(1)
            with bench.transactions.one():
                bench.connection.execute("ROLLBACK")
                raise sqlite3.OperationalError("database or disk is full")

    with pytest.raises(sqlite3.OperationalError):
        change()
    assert (bench.numbers, bench.commits) == ([], 0)
