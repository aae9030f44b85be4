"""The planned or finished effect of thinning, in documented JSON (docs/reference/thin-json.md)."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from zerotools.core.errors import ZerotoolsError
from zerotools.ops.thinning.checking import CheckedCopy
from zerotools.ops.thinning.in_place import Thinned
from zerotools.ops.thinning.thin_plan import ThinPlan

SCHEMA = "zerotools.thin/1"


class Status(StrEnum):
    """`PLANNED`: it was only examined. `NOTHING`: it has no state to drop. `REFUSED`: it was left
    unchanged, and `message` is the reason."""

    PLANNED = "planned"
    THINNED = "thinned"
    NOTHING = "nothing"
    REFUSED = "refused"


@dataclass(frozen=True)
class Outcome:
    """The outcome for one checkpoint. `error` is the reason of a refusal."""

    path: Path
    status: Status
    plan: ThinPlan | None = field(default=None, repr=False)
    done: Thinned | None = field(default=None, repr=False)
    error: ZerotoolsError | None = field(default=None, repr=False)

    @property
    def message(self) -> str | None:
        """The reason of the refusal as a sentence; None if it was not refused."""
        return None if self.error is None else str(self.error)

    @property
    def freed(self) -> int:
        """Bytes that are freed, or would be. Negative if the result is larger than before."""
        cleared = 0 if self.done is None else self.done.cleared
        if self.plan is None or self.status is Status.REFUSED:
            return 0
        return cleared + self.plan.freed

    @property
    def dropped(self) -> dict[str, int]:
        """Bytes of the tensors that go, by role; masters are called so."""
        return {} if self.plan is None else self.plan.dropped

    @property
    def bytes_before(self) -> int | None:
        """Size of all files in bytes; None if it could not be read."""
        return None if self.plan is None else self.plan.bytes_before

    @property
    def bytes_after(self) -> int | None:
        """Size of all files of the result."""
        return None if self.plan is None else self.plan.bytes_after

    @property
    def soundness(self) -> str | None:
        """The verdict of `verify` on the result; None before the result exists."""
        return None if self._checked is None else self._checked.soundness.value

    @property
    def tensors_compared(self) -> int | None:
        """The number of tensors that were written anew and compared."""
        return None if self._checked is None else self._checked.compared

    @property
    def _checked(self) -> CheckedCopy | None:
        return None if self.done is None else self.done.checked

    @property
    def all_problems(self) -> tuple[str, ...]:
        """Sentences on the problems of the checkpoint, and on the reason for a refusal."""
        refusal = () if self.message is None else (self.message,)
        return (*(() if self.plan is None else self.plan.problems), *refusal)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the user."""
        plan = () if self.plan is None else self.plan.notes
        return (*plan, *(() if self.done is None else self.done.notes))

    def to_json(self) -> dict[str, Any]:
        """Return the documented form."""
        plan, done = self.plan, self.done
        checked = None if done is None else done.checked
        return {
            "path": str(self.path),
            "status": self.status.value,
            "message": self.message,
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
