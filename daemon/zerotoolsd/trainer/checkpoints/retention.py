"""Decides which checkpoints are kept: the newest, one every N steps, the best, and those that a job
names.

The decision depends only on the directory, so that a restarted attempt decides the same. Standard
library only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from zerotools.core.errors import ZerotoolsError
from zerotools.runs import checkpoint_dirs
from zerotools.runs.retention import KeepRule, NeededCheckpoint, first_need, read_needed
from zerotools.runs.upload_records import checkpoint_in_upload


@dataclass(frozen=True)
class KeepPolicy:
    """The checkpoints of a run that are not deleted.

    They are the `last` newest (None: all) and those whose step is a multiple of `every`. `best` is
    `loss` or `eval_loss`: the checkpoint with the smallest value in its record is kept. `named` is
    the checkpoint that the job file names. `needed` is a directory that lists checkpoints that
    other jobs name. A checkpoint that is being uploaded is kept too.
    """

    last: int | None = None
    every: int | None = None
    best: str | None = None
    named: Path | None = None
    needed: Path | None = None

    def to_delete(self, output_dir: Path, newest: Path) -> list[Path]:
        """Return the checkpoints of `output_dir` to delete, now that `newest` is complete."""
        hints = (
            checkpoint_dirs.hinted(output_dir, hint)
            for hint in (checkpoint_dirs.LATEST, checkpoint_dirs.BEST)
        )
        kept = (newest, self.named, checkpoint_in_upload(output_dir), *hints)
        pinned = {path.resolve() for path in kept if path is not None}
        beyond = KeepRule(self.last, self.every).beyond(checkpoint_dirs.listing(output_dir))
        return [path for path in beyond if path.resolve() not in pinned]

    def needed_by_others(self, path: Path) -> NeededCheckpoint | None:
        """Return an unfinished job that needs the checkpoint at `path`; None without one. Call it
        immediately before the deletion."""
        return None if self.needed is None else first_need(path, read_needed(self.needed))

    def best_of(self, output_dir: Path, newest: Path) -> Path | None:
        """Return the best checkpoint in `output_dir`, now that `newest` is complete; None if
        unknown."""
        if self.best is None:
            return None
        hinted = checkpoint_dirs.hinted(output_dir, checkpoint_dirs.BEST)
        # The hint avoids reading all records; a missing or new one has no information.
        known = hinted is not None and hinted != newest and self._value(hinted) < math.inf
        candidates = [hinted, newest] if known else checkpoint_dirs.listing(output_dir)
        values = {path: self._value(path) for path in candidates if path is not None}
        found = min(values, key=lambda path: (values[path], path.name), default=None)
        return found if found is not None and values[found] < math.inf else None

    def _value(self, path: Path) -> float:
        try:
            value = checkpoint_dirs.read_record(path).measured.get(self.best or "", math.inf)
        except ZerotoolsError:  # not one to go back to, whatever it was
            return math.inf
        return value if math.isfinite(value) else math.inf
