"""What thinning would do or did, as the documented JSON (docs/reference/thin-json.md)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from zerotools.core.errors import ZerotoolsError
from zerotools.ops.thinning.in_place import Thinned
from zerotools.ops.thinning.thin_plan import ThinPlan

SCHEMA = "zerotools.thin/1"


class Status(StrEnum):
    """`PLANNED`: it was only looked at. `NOTHING`: it has no state to drop. `REFUSED`: it was left
    as it is, and `message` says why."""

    PLANNED = "planned"
    THINNED = "thinned"
    NOTHING = "nothing"
    REFUSED = "refused"


@dataclass(frozen=True)
class Outcome:
    """What came of one checkpoint; `error` is why it was refused."""

    path: Path
    status: Status
    plan: ThinPlan | None = None
    done: Thinned | None = None
    error: ZerotoolsError | None = None

    @property
    def freed(self) -> int:
        """Bytes of files that are free, or would be; below 0: it takes more."""
        cleared = 0 if self.done is None else self.done.cleared
        if self.plan is None or self.status is Status.REFUSED:
            return 0
        return cleared + self.plan.freed

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the user."""
        plan = () if self.plan is None else self.plan.notes
        return (*plan, *(() if self.done is None else self.done.notes))

    def to_json(self) -> dict[str, Any]:
        """The documented form."""
        plan, done = self.plan, self.done
        checked = None if done is None else done.checked
        return {
            "path": str(self.path),
            "status": self.status.value,
            "message": None if self.error is None else str(self.error),
            "format": None if plan is None else plan.source.origin.format,
            "step": None if plan is None else plan.source.origin.step,
            "keeps": None if plan is None else plan.thinning.keep.value,
            "dropped": {} if plan is None else plan.dropped,
            "files_removed": sorted(() if plan is None else plan.removed),
            "files_rewritten": sorted(() if plan is None else plan.rewritten),
            "bytes_before": None if plan is None else plan.bytes_before,
            "bytes_after": None if plan is None else plan.bytes_after,
            "freed_bytes": self.freed,
            "shared_bytes": 0 if plan is None else plan.shared,
            "problems": list(() if plan is None else plan.problems),
            "soundness": None if checked is None else checked.soundness.value,
            "tensors": None if checked is None else checked.tensors,
            "tensors_compared": None if checked is None else checked.compared,
            "notes": list(self.notes),
        }
