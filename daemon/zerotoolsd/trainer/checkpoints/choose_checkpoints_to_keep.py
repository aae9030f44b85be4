"""Decides which checkpoints are kept: the newest checkpoints, one every N steps, the best
checkpoint, and the checkpoints that a job names.

The decision depends only on the files in the directory, so a restarted attempt makes the same
decision. This module uses only the standard library.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

from zerotools.core.errors import ZerotoolsError
from zerotools.runs import find_job_checkpoints
from zerotools.runs.deletable_checkpoints import KeepRule, NeededCheckpoint, first_need, read_needed
from zerotools.runs.upload_records import checkpoint_in_upload

EVALUATIONS = "evaluations.json"
"""A file in the output directory with losses by the names of checkpoints.

A stop may end the evaluation of a step, and then the record of this step's checkpoint has no loss
of it. The next attempt evaluates, but does not change a checkpoint that was committed.
"""


def late_evaluations(output_dir: Path) -> dict[str, float]:
    """Return the losses in the file `EVALUATIONS`: the name of a checkpoint -> its `eval_loss`."""
    try:
        tree = json.loads((output_dir / EVALUATIONS).read_bytes())
    except (OSError, ValueError):
        return {}
    items = tree.items() if isinstance(tree, dict) else ()
    return {name: float(loss) for name, loss in items if isinstance(loss, int | float)}


def add_late_evaluation(output_dir: Path, checkpoint: Path, loss: float) -> None:
    """Add the `eval_loss` of `checkpoint` to the file `EVALUATIONS`, and remove the entries of
    deleted checkpoints.

    Raises OSError.
    """
    kept = {path.name for path in find_job_checkpoints.list_checkpoints(output_dir)}
    losses = {**late_evaluations(output_dir), checkpoint.name: loss}
    losses = {name: value for name, value in losses.items() if name in kept}
    find_job_checkpoints.write_hint(output_dir, EVALUATIONS, json.dumps(losses))


@dataclass(frozen=True)
class KeepPolicy:
    """The rules that decide which checkpoints of a run are kept. A checkpoint that is being
    uploaded is never deleted.

    Attributes:
        last: keep this number of the newest checkpoints (None: all).
        every: keep each checkpoint with a step that is a multiple of this number.
        best: keep the checkpoint with the smallest value of this name in its record, `loss` or
            `eval_loss`.
        named: keep this checkpoint, which the job file names.
        needed: a directory that lists checkpoints that other jobs need.
    """

    last: int | None = None
    every: int | None = None
    best: str | None = None
    named: Path | None = None
    needed: Path | None = None

    def to_delete(self, output_dir: Path, newest: Path) -> list[Path]:
        """Return the checkpoints in `output_dir` that these rules do not keep.

        `newest` is the checkpoint that was just completed. The rule `needed` is not applied here:
        see `needed_by_others`.
        """
        hints = (
            find_job_checkpoints.hinted_checkpoint(output_dir, hint)
            for hint in (find_job_checkpoints.LATEST, find_job_checkpoints.BEST)
        )
        kept = (newest, self.named, checkpoint_in_upload(output_dir), *hints)
        pinned = {path.resolve() for path in kept if path is not None}
        beyond = KeepRule(self.last, self.every).beyond(
            find_job_checkpoints.list_checkpoints(output_dir)
        )
        return [path for path in beyond if path.resolve() not in pinned]

    def needed_by_others(self, path: Path) -> NeededCheckpoint | None:
        """Return the entry of an unfinished job that needs the checkpoint at `path`; None if no job
        needs it.

        Call this immediately before the checkpoint is deleted.
        """
        return None if self.needed is None else first_need(path, read_needed(self.needed))

    def best_of(self, output_dir: Path, newest: Path, before: Path | None = None) -> Path | None:
        """Return the checkpoint in `output_dir` with the smallest value of the metric `best`.

        `newest` is the checkpoint that was just completed. `before` is the best of all others, if
        this is known; otherwise all records are read. Returns None if `best` is not set, or no
        checkpoint has a finite value.
        """
        if self.best is None:
            return None
        candidates = find_job_checkpoints.list_checkpoints(output_dir)
        if before is not None and before != newest and self._value(before) < math.inf:
            candidates = [before, newest]
        values = {path: self._value(path) for path in candidates}
        found = min(values, key=lambda path: (values[path], path.name), default=None)
        return found if found is not None and values[found] < math.inf else None

    def _value(self, path: Path) -> float:
        late = late_evaluations(path.parent).get(path.name) if self.best == "eval_loss" else None
        if late is not None and math.isfinite(late):
            return late
        try:
            value = find_job_checkpoints.read_record(path).measured.get(self.best or "", math.inf)
        except ZerotoolsError:  # not one to go back to, whatever it was
            return math.inf
        return value if math.isfinite(value) else math.inf
