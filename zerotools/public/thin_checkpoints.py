"""Drop the optimizer state of checkpoints in place."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, Unpack

from zerotools.core.errors import BadRequest, ZerotoolsError
from zerotools.core.thinning_changes import Keep
from zerotools.formats.format import ReadOptions
from zerotools.io.stores.parse_url import path_of
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.thinning import carry_out_thinning
from zerotools.ops.thinning.carry_out_thinning import SCHEMA, Outcome, Status
from zerotools.ops.thinning.select_checkpoints import paths_of, select_for_thinning
from zerotools.ops.thinning.thin_plan import ThinPlan, leftover_note, prepare_thinning
from zerotools.public.command_options.declare_and_bind_options import (
    OUTPUT,
    WHAT,
    WHEN,
    Option,
    PathOption,
    Span,
    StrPath,
    as_list,
    bind_options,
    takes_options,
)
from zerotools.public.command_options.part_and_memory_options import budget_of
from zerotools.public.command_options.read_options import CheckingOptions, ReadingOptions
from zerotools.public.progress import Meter, ProgressWanted, metering

if TYPE_CHECKING:
    from zerotools.jobs.client.checkpoints_in_use import NeedGuard, ResumePath


class DropOptions(TypedDict, total=False):
    """Options that select checkpoints of a run, and the tensors to drop."""

    older_than: Annotated[
        Span | None,
        Option(
            group=WHAT,
            metavar="TIME",
            help="Select checkpoints in PATH older than this: 30d, 12h, or seconds.",
        ),
    ]
    keep_last: Annotated[
        int | None,
        Option(
            group=WHAT,
            least=0,
            metavar="N",
            help="Select all checkpoints in PATH except the N newest.  [default: 1]",
        ),
    ]
    keep_every: Annotated[
        int | None,
        Option(
            group=WHAT,
            least=1,
            metavar="N",
            help="Do not select checkpoints in PATH if their step is a multiple of N.",
        ),
    ]
    drop_masters: Annotated[
        bool,
        Option(
            group=OUTPUT,
            help="Also drop the fp32 masters of weights that have a 16-bit copy.",
        ),
    ]
    yes: Annotated[
        bool,
        Option(group=OUTPUT, short="-y", help="Change the files. Without it, only show the plan."),
    ]
    force: Annotated[bool, Option(group=OUTPUT, help="Also thin a checkpoint that has problems.")]


class SelectedOptions(DropOptions, ReadingOptions, CheckingOptions, total=False):
    """The options of `zerotools thin`, except the socket of the daemon."""


class ThinKeywords(SelectedOptions, total=False):
    """The options of `zerotools thin`."""

    socket: Annotated[
        PathOption | None,
        Option(
            group=WHEN,
            metavar="PATH",
            help="Socket of the daemon.  [default: $ZEROTOOLS_SOCKET, or the standard path]",
        ),
    ]


@dataclass(frozen=True)
class ThinResult:
    """The result of `thin`. Without `yes=True` it is a plan, and no file was changed.

    `checkpoints` has one outcome for each checkpoint. Its `status` is "planned", "thinned",
    "nothing" (the checkpoint has no optimizer state) or "refused". `stays` lists the checkpoints of
    a run that were not selected, each with the reason. `jobs_checked` is True if a daemon answered.
    In that case, checkpoints from which jobs would resume were refused.
    """

    checkpoints: tuple[Outcome, ...]
    stays: tuple[tuple[Path, str], ...] = ()
    keep: Keep = Keep.MASTERS
    dry_run: bool = True
    jobs_checked: bool = False
    seconds: float = 0.0

    @property
    def freed_bytes(self) -> int:
        """The number of bytes that thinning frees, or would free. It is negative if the result is
        larger than before."""
        return sum(each.freed for each in self.checkpoints)

    @property
    def dropped(self) -> dict[str, int]:
        """The size in bytes of the dropped tensors of all checkpoints together, keyed by role."""
        found: dict[str, int] = {}
        for each in self.checkpoints:
            for role, size in each.dropped.items():
                found[role] = found.get(role, 0) + size
        return found

    @property
    def problems(self) -> tuple[str, ...]:
        """The problems of the checkpoints, and the reasons why checkpoints were refused, as
        sentences."""
        return tuple(said for each in self.checkpoints for said in each.all_problems)

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes for the user, as sentences."""
        notes = [note for each in self.checkpoints for note in each.notes]
        if not self.jobs_checked:
            from zerotools.jobs.client.checkpoints_in_use import NOT_CHECKED

            notes.append(NOT_CHECKED)
        return tuple(notes)

    def to_json(self) -> dict[str, Any]:
        """Return the documented JSON (docs/reference/thin-json.md)."""
        return {
            "schema": SCHEMA,
            "dry_run": self.dry_run,
            "keep": self.keep.value,
            "jobs_checked": self.jobs_checked,
            "freed_bytes": self.freed_bytes,
            "checkpoints": [each.to_json() for each in self.checkpoints],
            "stays": [{"path": str(path), "why": why} for path, why in self.stays],
            "seconds": round(self.seconds, 3),
        }


@takes_options(ThinKeywords)
def thin(
    paths: StrPath | Iterable[StrPath],
    *,
    progress: ProgressWanted = None,
    **options: Unpack[ThinKeywords],
) -> ThinResult:
    """Drop the optimizer state of one or several checkpoints in place. The weights can still be
    loaded.

    Without `yes=True` no file is changed, and the result is the plan. Training cannot resume from a
    thinned checkpoint. If the call is interrupted, each checkpoint is either unchanged or
    completely thinned. With `keep_last`, `keep_every` or `older_than`, each path is the directory
    of a run. The daemon at `socket` is asked which checkpoints jobs would resume from. If no daemon
    answers, `notes` of the result say that this was not checked.

    If a checkpoint is refused, its outcome has the status "refused", and the other checkpoints are
    still thinned. If all are refused, the first error is raised.

    Raises:
        BadRequest: a path does not exist or has several checkpoints, a job needs the checkpoint, or
            the disk is full.
        BadFile: the checkpoint has problems, or another program changed it. `thin` does not change
            this checkpoint.
        Unsupported: the checkpoint cannot be thinned, or its file system cannot exchange two names.
    """
    given = bind_options(ThinKeywords, options)
    thinning = ThinSteps([path_of(each) for each in as_list(paths)], given)
    found = thinning.planned()
    if given["yes"]:
        with metering(progress) as meter:
            found = thinning.done(found, meter)
    errors = [each.error for each in found.checkpoints if each.error is not None]
    if errors and len(errors) == len(found.checkpoints):
        raise errors[0]
    return found


class ThinSteps:
    """The steps of `thin`: `planned` selects and plans, and `done` executes. `given` are bound
    `ThinKeywords`."""

    def __init__(self, paths: Sequence[Path], given: Mapping[str, Any]) -> None:
        from zerotools.jobs.client.checkpoints_in_use import NeedGuard, needs_at

        self._began = time.monotonic()
        self._paths, self._given = paths, given
        self._keep = Keep.WEIGHTS if given["drop_masters"] else Keep.MASTERS
        self._options = ReadOptions(given["tag"], given["layout"], given["section"])
        self._budget: MemoryBudget = budget_of(given)
        self._needed: list[ResumePath] | None = needs_at(given["socket"])
        self._guard: NeedGuard = NeedGuard(given["socket"])
        rules = (given["keep_last"], given["keep_every"], given["older_than"])
        self.is_selecting = any(rule is not None for rule in rules)
        if self.is_selecting and given["tag"] is not None:
            raise BadRequest(
                "--tag selects one checkpoint of a directory, but --keep-last, --keep-every and "
                "--older-than select several; use one of the two"
            )

    def planned(self) -> ThinResult:
        """Select the checkpoints, and return the plan for each."""
        chosen = self._choose() if self.is_selecting else _Chosen(list(self._paths))
        distinct = {path.absolute(): path for path in chosen.paths}.values()
        found = _first_outcomes([*chosen.refused, *map(self._look, distinct)])
        return self._result(found, tuple(chosen.stays), dry_run=True)

    def done(self, planned: ThinResult, meter: Meter) -> ThinResult:
        """Execute a plan, and return the result."""
        found = [self._do(each, meter) for each in planned.checkpoints]
        return self._result(found, planned.stays, dry_run=False)

    def _result(
        self, found: Iterable[Outcome], stays: tuple[tuple[Path, str], ...], *, dry_run: bool
    ) -> ThinResult:
        seconds, checked = time.monotonic() - self._began, self._needed is not None
        return ThinResult(tuple(found), stays, self._keep, dry_run, checked, seconds)

    def _choose(self) -> _Chosen:
        chosen, given = _Chosen(), self._given
        for path in self._paths:
            try:
                found = select_for_thinning(
                    path,
                    keep_last=given["keep_last"],
                    keep_every=given["keep_every"],
                    older_than=given["older_than"],
                    now=time.time(),
                )
            except ZerotoolsError as error:
                chosen.refused.append(_refused(path, error))
            else:
                chosen.paths += paths_of(found.chosen)
                chosen.stays += found.stays
        return chosen

    def _look(self, path: Path) -> Outcome:
        try:
            plan = prepare_thinning(path, self._keep, self._options)
            need = next((each for each in self._needed or () if each.concerns(plan.subject)), None)
            if plan.has_work and need is not None:
                raise BadRequest(need.sentence(plan.subject))
        except ZerotoolsError as error:
            return _refused(path, error)
        return Outcome(path, Status.PLANNED if plan.has_work else Status.NOTHING, plan)

    def _do(self, looked: Outcome, meter: Meter) -> Outcome:
        plan = looked.plan
        if plan is None or looked.status is Status.REFUSED:
            return looked
        if looked.status is Status.NOTHING and leftover_note(plan) is None:
            return looked
        total = plan.bytes_to_write + plan.bytes_after
        try:
            with meter(total, f"thin {plan.subject.name}") as on_bytes:
                done = carry_out_thinning.carry_out_thinning(
                    plan,
                    force=self._given["force"],
                    budget=self._budget,
                    on_bytes=on_bytes,
                    permit=self._guard.refuse,
                )
        except ZerotoolsError as error:
            return _refused(looked.path, error, plan)
        status = Status.THINNED if plan.has_work else Status.NOTHING
        return replace(looked, status=status, done=done)


@dataclass
class _Chosen:
    """The checkpoints that the options select.

    Attributes:
        paths: the checkpoints to thin.
        stays: the checkpoints of a run that stay, each with the reason.
        refused: the checkpoints that were refused.
    """

    paths: list[Path] = field(default_factory=list)
    stays: list[tuple[Path, str]] = field(default_factory=list)
    refused: list[Outcome] = field(default_factory=list)


def _refused(path: Path, error: ZerotoolsError, plan: ThinPlan | None = None) -> Outcome:
    return Outcome(path, Status.REFUSED, plan, error=error)


def _first_outcomes(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Keep only the first outcome for each checkpoint. Two paths, such as `run` and
    `run/global_step2`, may lead to the same checkpoint."""
    found: dict[Path, Outcome] = {}
    for each in outcomes:
        place = each.path.absolute() if each.plan is None else each.plan.subject.resolve()
        found.setdefault(place, each)
    return list(found.values())
