"""Thin a checkpoint in place: check, make the copy next to it, check that, exchange the two."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from zerotools.core.errors import BadFile, BadRequest
from zerotools.io.files.open_files import sync_file
from zerotools.io.output.exchange import exchange as exchange_names
from zerotools.ops.execution.workers import MemoryBudget
from zerotools.ops.thinning.building import build
from zerotools.ops.thinning.checking import NOTHING_CHANGED, CheckedCopy, check_copy
from zerotools.ops.thinning.thin_plan import ThinPlan
from zerotools.ops.thinning.workspace import Exchange, Workspace

# Bytes for directories, records and the file system itself.
_SLACK = 2**20


@dataclass(frozen=True)
class Thinned:
    """The result: `cleared` are the bytes that an interrupted run had left, `notes` sentences on
    problems next to the checkpoint. `checked` is None if the checkpoint was not changed."""

    plan: ThinPlan
    checked: CheckedCopy | None
    cleared: int = 0
    notes: tuple[str, ...] = ()


def thin(
    plan: ThinPlan,
    *,
    force: bool = False,
    budget: MemoryBudget | None = None,
    on_bytes: Callable[[int], None] = lambda _: None,
    permit: Callable[[Path], None] = lambda _: None,
    exchange: Exchange = exchange_names,
) -> Thinned:
    """Carry `plan` out. Whenever it is interrupted, the checkpoint is whole: unchanged, or thinned.
    With `force`, a checkpoint with problems is thinned too, and kept data keeps them. `permit`
    raises if the checkpoint is needed unchanged: it is called before anything is written, and again
    before the exchange, because the copy takes time. `exchange` is the system's.

    Raises:
        BadRequest: a process writes there, the disk is full, or it cannot be exchanged.
        BadFile: it has problems, or changed since `plan` was made. It stays unchanged.
        Unsupported: its file system cannot exchange two names in one step.
    """
    if plan.problems and not force:
        more = f" (and {len(plan.problems) - 1} more)" if plan.problems[1:] else ""
        raise BadFile(
            f"{plan.subject} has problems, and {NOTHING_CHANGED}: {plan.problems[0]}{more}; "
            "--force thins it all the same"
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
    """Make the copy and check it."""
    copy, links, workers = workspace.copy, workspace.links, budget.workers
    flush = flushing.add
    written = build(plan, copy, links=links, workers=workers, flush=flush, on_bytes=on_bytes)
    return check_copy(plan, copy, written, force=force, budget=budget, on_bytes=on_bytes)


class _Flushing:
    """Flushes files while others are written and all are checked; done at its end."""

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
            f"{plan.subject.parent} has {free} free; free some space, and run the command again"
        )
