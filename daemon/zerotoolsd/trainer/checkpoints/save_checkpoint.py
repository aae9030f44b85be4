"""All ranks save one checkpoint together. The checkpoint is complete, or it does not exist.

1. Rank 0 makes a staging directory and sends its name to the other ranks.
2. Every rank writes its shards and its random number state, and flushes them.
3. Rank 0 adds the record, the config and, as the last file, the manifest, and flushes the
   directories.
4. Rank 0 renames the directory, and updates the hint files `latest` and `best`.
5. Rank 0 deletes old checkpoints.

If a process is killed during the save, older checkpoints are unchanged. The next attempt removes
the staging directory. Ranks wait for each other in the control group of `Saver.group`, which has a
long timeout. A saver that runs in the background has its own control group, so that it cannot
receive messages of the training thread.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar, cast

from zerotools.runs import find_job_checkpoints
from zerotools.runs.training_record import JobRecord
from zerotoolsd.trainer.checkpoints.commit_and_delete_checkpoints import (
    Committed,
    Committer,
    sync_file,
)
from zerotoolsd.trainer.rank.process_group import WorldGroup
from zerotoolsd.trainer.rank.rank_errors import Diverged

Value = TypeVar("Value")


class SaveFailed(RuntimeError):
    """A checkpoint could not be written. Older checkpoints are unchanged."""


@dataclass(frozen=True)
class Saved:
    """A committed checkpoint, and the time that its save took, in seconds."""

    step: int
    committed: Committed
    seconds: float


@dataclass(frozen=True)
class Saver:
    """Saves the checkpoints of a run.

    Each rank has its own `Saver`, and all ranks call it together.
    """

    committer: Committer
    group: WorldGroup

    def save(self, record: JobRecord, write: Callable[[Path], None], random: str) -> Saved:
        """Save and commit the checkpoint of step `record.step`. All ranks call it together.

        `write` is called with the staging directory and writes this rank's part. `random` is the
        state of this rank's random number generators. Every rank gets the same error. After an
        error the staging directory is deleted, and no checkpoint was committed.

        Raises:
            SaveFailed: a rank could not write its part, or rank 0 could not commit the checkpoint.
            Diverged: the state has a value that is not finite.
        """
        started = time.monotonic()
        staging = self._by_rank_zero(lambda: self.committer.make_staging(record.step))
        try:
            self._by_all(lambda: self._write_part(staging, write, random))
            committed = self._by_rank_zero(lambda: self.committer.commit(staging, record))
        except (SaveFailed, Diverged):
            if self.group.rank.leads:
                shutil.rmtree(staging, ignore_errors=True)
            raise
        return Saved(record.step, committed, time.monotonic() - started)

    def _by_rank_zero(self, act: Callable[[], Value]) -> Value:
        def attempt() -> tuple[Value | None, str | None]:
            try:
                return act(), None
            except OSError as error:
                return None, str(error)

        value, problem = self.group.decided_by_rank_zero(attempt)
        if problem is not None:
            raise SaveFailed(problem)
        return cast(Value, value)

    def _by_all(self, act: Callable[[], None]) -> None:
        problem = None
        try:
            act()
        except (OSError, SaveFailed, Diverged) as error:
            problem = (isinstance(error, Diverged), str(error))
        problems = [one for one in self.group.gathered(problem) if one is not None]
        if problems:
            has_diverged, why = max(problems)
            raise Diverged(why) if has_diverged else SaveFailed(why)

    def _write_part(self, staging: Path, write: Callable[[Path], None], random: str) -> None:
        write(staging)
        path = staging / find_job_checkpoints.rng_name(self.group.rank.index)
        path.write_text(random, "utf-8")
        sync_file(path)
