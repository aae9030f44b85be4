"""A migration that is killed at its calls: `python -m tests.daemon.queue.killed_migration DIRECTORY
STEP`, which prints how many calls it has.

`DIRECTORY/old` is a state directory with one job. It is killed at every STEP-th call, by a process
that is small: each kill takes a fork.
"""

from __future__ import annotations

import shutil
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

from harness.syscalls import run_until
from zerotoolsd.queue import schema

NEWER = (*schema.MIGRATIONS, "ALTER TABLE job ADD COLUMN later TEXT;")


def migrate(state: Path) -> tuple[int, str | None]:
    """Open the queue with a newer schema, and return its job."""
    with closing(schema.open_database(state, NEWER)) as database:
        row: tuple[int, str | None] = tuple(
            database.execute("SELECT id, later FROM job").fetchone()
        )
        return row


def main() -> None:
    """Kill it, and migrate at the next start."""
    directory, step = Path(sys.argv[1]), int(sys.argv[2])
    old = directory / "old"
    whole = shutil.copytree(old, directory / "all")
    calls = len(run_until(partial(migrate, whole)).calls)
    for number in range(0, calls, step):
        state = shutil.copytree(old, directory / str(number))
        killed = run_until(partial(migrate, state), number)
        assert killed.status is None, number
        assert migrate(state) == (1, None), number
    print(calls)


if __name__ == "__main__":
    main()
