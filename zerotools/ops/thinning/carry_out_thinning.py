"""Thin a checkpoint in place: check it, make the copy next to it, check the copy, and exchange the
two. The planned or finished result has a documented JSON form (docs/reference/thin-json.md).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadFile, BadRequest, ZerotoolsError
from zerotools.io.files.open_files import sync_file
from zerotools.io.output.staging import exchange_names
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.thinning.swap_directories import Exchange, Workspace
from zerotools.ops.thinning.thin_plan import ThinPlan
from zerotools.ops.thinning.thinned_copy import (
    NOTHING_CHANGED,
    CheckedCopy,
    build_thinned_copy,
    check_copy,
)

# Bytes for directories, records and the file system itself.
_SLACK = 2**20


@dataclass(frozen=True)
class Thinned:
    """The result of thinning a checkpoint.

    `cleared` is the size in bytes of removed files of an interrupted run. `notes` are sentences
    about files that could not be removed. `checked` is None if the checkpoint was not changed.
    """

    plan: ThinPlan
    checked: CheckedCopy | None
    cleared: int = 0
    notes: tuple[str, ...] = ()


def carry_out_thinning(
    plan: ThinPlan,
    *,
    force: bool = False,
    budget: MemoryBudget | None = None,
    on_bytes: Callable[[int], None] = lambda _: None,
    permit: Callable[[Path], None] = lambda _: None,
    exchange: Exchange = exchange_names,
) -> Thinned:
    """Carry out `plan`. After an interruption the checkpoint is complete: unchanged, or thinned.

    With `force`, a checkpoint with problems is thinned too, and the kept data keeps the problems.
    `permit` raises an error if the checkpoint must stay unchanged. It is called before the copy is
    made, and again before the exchange. `exchange` is the system call that exchanges two names.

    Raises:
        BadRequest: a process is writing a file of the checkpoint, the disk is full, or the
            checkpoint cannot be exchanged with the copy.
        BadFile: the checkpoint has problems, or has changed since `plan` was made. It stays
            unchanged.
        Unsupported: the file system cannot exchange two names in one step.
    """
    if plan.problems and not force:
        more = f" (and {len(plan.problems) - 1} more)" if plan.problems[1:] else ""
        raise BadFile(
            f"{plan.subject} has problems, and {NOTHING_CHANGED}: {plan.problems[0]}{more}; "
            "--force thins it anyway"
        )
    budget = budget or MemoryBudget()
    with Workspace(plan.subject, exchange) as workspace:
        if not plan.has_work:
            return Thinned(plan, None, workspace.cleared)
        permit(plan.subject)
        plan.sources.check()
        plan.entries.check_unchanged(plan.subject)
        plan.entries.check_unwritten()
        _check_room(plan, links=workspace.links)
        try:
            with _Flushing() as flushing:
                checked = _make(plan, workspace, flushing, force, budget, on_bytes)
            plan.entries.check_unwritten()
            permit(plan.subject)
            workspace.commit(plan.entries.check_unchanged)
        except OSError as error:
            if not workspace.exchanged:
                raise BadRequest(
                    f"{plan.subject} cannot be thinned, and {NOTHING_CHANGED}: "
                    f"{error.filename or workspace.copy}: {error.strerror}"
                ) from error
            note = f"the old copy cannot be removed: {error.filename}: {error.strerror}"
            return Thinned(plan, checked, workspace.cleared, (note,))
    return Thinned(plan, checked, workspace.cleared)


def _make(
    plan: ThinPlan,
    workspace: Workspace,
    flushing: _Flushing,
    force: bool,
    budget: MemoryBudget,
    on_bytes: Callable[[int], None],
) -> CheckedCopy:
    copy, links, workers = workspace.copy, workspace.links, budget.workers
    flush = flushing.add
    written = build_thinned_copy(
        plan, copy, links=links, workers=workers, flush=flush, on_bytes=on_bytes
    )
    return check_copy(plan, copy, written, force=force, budget=budget, on_bytes=on_bytes)


class _Flushing:
    """Flushes files to the disk in a separate thread. At the end of the context all are flushed."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(1)
        self._flushed: list[Future[None]] = []

    def add(self, path: Path) -> None:
        self._flushed.append(self._pool.submit(sync_file, path))

    def __enter__(self) -> _Flushing:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._pool:
            for flushed in self._flushed if kind is None else ():
                flushed.result()


def _check_room(plan: ThinPlan, *, links: bool) -> None:
    needed = plan.bytes_to_write if links else plan.bytes_after
    free = shutil.disk_usage(plan.subject.parent).free
    if free < needed + _SLACK:
        raise BadRequest(
            f"{plan.subject} needs {needed + _SLACK} more bytes of disk during thinning, but "
            f"{plan.subject.parent} has {free} bytes free; free some space, and run the command "
            "again"
        )


SCHEMA = "zerotools.thin/1"


class Status(StrEnum):
    """The outcome for a checkpoint. `PLANNED`: it was only examined. `NOTHING`: it has no state to
    drop. `REFUSED`: it was left unchanged, and `Outcome.message` is the reason."""

    PLANNED = "planned"
    THINNED = "thinned"
    NOTHING = "nothing"
    REFUSED = "refused"


@dataclass(frozen=True)
class Outcome:
    """The outcome of thinning one checkpoint. `error` is the reason if it was refused."""

    path: Path
    status: Status
    plan: ThinPlan | None = field(default=None, repr=False)
    done: Thinned | None = field(default=None, repr=False)
    error: ZerotoolsError | None = field(default=None, repr=False)

    @property
    def message(self) -> str | None:
        """The reason why the checkpoint was refused, as a sentence; None if it was not refused."""
        return None if self.error is None else str(self.error)

    @property
    def freed(self) -> int:
        """The number of bytes that thinning frees, or would free. It is negative if the result is
        larger than before."""
        cleared = 0 if self.done is None else self.done.cleared
        if self.plan is None or self.status is Status.REFUSED:
            return 0
        return cleared + self.plan.freed

    @property
    def dropped(self) -> dict[str, int]:
        """The size in bytes of the removed tensors, keyed by role. Fp32 masters of weights have a
        role of their own."""
        return {} if self.plan is None else self.plan.dropped

    @property
    def bytes_before(self) -> int | None:
        """The size in bytes of all files of the checkpoint; None if the checkpoint could not be
        read."""
        return None if self.plan is None else self.plan.bytes_before

    @property
    def bytes_after(self) -> int | None:
        """The size in bytes of all files of the result; None if the checkpoint could not be
        read."""
        return None if self.plan is None else self.plan.bytes_after

    @property
    def soundness(self) -> str | None:
        """The verdict of `verify` on the result; None before the result exists."""
        return None if self._checked is None else self._checked.soundness.value

    @property
    def tensors_compared(self) -> int | None:
        """The number of tensors in rewritten files that were compared with the old ones; None
        before the result exists."""
        return None if self._checked is None else self._checked.compared

    @property
    def _checked(self) -> CheckedCopy | None:
        return None if self.done is None else self.done.checked

    @property
    def all_problems(self) -> tuple[str, ...]:
        """Sentences about the problems of the checkpoint, then the reason if it was refused."""
        refusal = () if self.message is None else (self.message,)
        return (*(() if self.plan is None else self.plan.problems), *refusal)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the user."""
        plan = () if self.plan is None else self.plan.notes
        return (*plan, *(() if self.done is None else self.done.notes))

    def to_json(self) -> dict[str, Any]:
        """Return the form that docs/reference/thin-json.md documents."""
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
