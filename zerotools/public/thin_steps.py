"""Drop the optimizer state of checkpoints, in place."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, Unpack

from zerotools.core.errors import BadRequest, ZerotoolsError
from zerotools.core.thinning import Keep
from zerotools.formats.format import ReadOptions
from zerotools.io.stores.addresses import path_of
from zerotools.ops.execution.workers import MemoryBudget
from zerotools.ops.thinning import in_place
from zerotools.ops.thinning.run_checkpoints import paths_of, select
from zerotools.ops.thinning.thin_plan import ThinPlan, leftover_note, prepare
from zerotools.ops.thinning.thin_report import SCHEMA, Outcome, Status
from zerotools.public.options.option import (
    OUTPUT,
    WHAT,
    WHEN,
    Option,
    PathOption,
    Span,
    StrPath,
    bound,
    several,
    takes_options,
)
from zerotools.public.options.read_options import ReadingOptions
from zerotools.public.options.write_options import CheckingOptions, budget_of
from zerotools.public.progress import Meter, ProgressWanted, metering

if TYPE_CHECKING:
    from zerotools.jobs.client.needed_checkpoints import Need, NeedGuard


class DropOptions(TypedDict, total=False):
    """Options that choose checkpoints of a run, and what is dropped."""

    older_than: Annotated[
        Span | None,
        Option(
            group=WHAT,
            metavar="TIME",
            help="Of the checkpoints in PATH, those written longer ago: 30d, 12h, or seconds.",
        ),
    ]
    keep_last: Annotated[
        int | None,
        Option(
            group=WHAT,
            least=0,
            metavar="N",
            help="Of the checkpoints in PATH, all but the N newest.  [default: 1]",
        ),
    ]
    keep_every: Annotated[
        int | None,
        Option(
            group=WHAT,
            least=1,
            metavar="N",
            help="Of the checkpoints in PATH, not those whose step is a multiple of N.",
        ),
    ]
    drop_masters: Annotated[
        bool,
        Option(
            group=OUTPUT,
            help="Drop the fp32 masters, too, where 16-bit weights lie beside them.",
        ),
    ]
    yes: Annotated[
        bool,
        Option(group=OUTPUT, short="-y", help="Do it. Without it, only say what would be done."),
    ]
    force: Annotated[bool, Option(group=OUTPUT, help="Thin a checkpoint that has problems, too.")]


class SelectedOptions(DropOptions, ReadingOptions, CheckingOptions, total=False):
    """The options of `zerotools thin` but for the daemon's socket."""


class ThinKeywords(SelectedOptions, total=False):
    """The options of `zerotools thin`."""

    socket: Annotated[
        PathOption | None,
        Option(
            group=WHEN,
            metavar="PATH",
            help="Socket of the daemon.  [default: $ZEROTOOLS_SOCKET, else the usual place]",
        ),
    ]


@dataclass(frozen=True)
class ThinResult:
    """The result of `thin`. Without `yes=True` nothing was changed.

    `checkpoints` has one outcome for each checkpoint: `status` is "planned", "thinned", "nothing"
    (there is no state to drop) or "refused". `stays` are checkpoints of a run's directory that were
    not meant, with the reason. `jobs_checked` says whether a daemon answered, so that checkpoints
    which jobs would resume from are refused.
    """

    checkpoints: tuple[Outcome, ...]
    stays: tuple[tuple[Path, str], ...] = ()
    keep: Keep = Keep.MASTERS
    dry_run: bool = True
    jobs_checked: bool = False
    seconds: float = 0.0

    @property
    def freed_bytes(self) -> int:
        """Bytes of files that are free, or would be; below 0 where it takes more."""
        return sum(each.freed for each in self.checkpoints)

    @property
    def dropped(self) -> dict[str, int]:
        """Bytes of the tensors that go, by role, of all checkpoints together."""
        found: dict[str, int] = {}
        for each in self.checkpoints:
            for role, size in each.dropped.items():
                found[role] = found.get(role, 0) + size
        return found

    @property
    def problems(self) -> tuple[str, ...]:
        """Sentences on what is wrong with the checkpoints, and on why some were refused."""
        return tuple(said for each in self.checkpoints for said in each.all_problems)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences for the user."""
        notes = [note for each in self.checkpoints for note in each.notes]
        if not self.jobs_checked:
            from zerotools.jobs.client.needed_checkpoints import NOT_CHECKED

            notes.append(NOT_CHECKED)
        return tuple(notes)

    def to_json(self) -> dict[str, Any]:
        """The documented JSON (docs/reference/thin-json.md)."""
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
    """Drop the optimizer state of one checkpoint or several, in place; the weights stay loadable.

    Without `yes=True` nothing is changed, and the result says what would be. Training cannot resume
    from what is left. Whatever stops it, a checkpoint is whole, as it was or thinned. With
    `keep_last`, `keep_every` or `older_than`, a path is a run's directory. The daemon at `socket`
    is asked whether a job would resume from a checkpoint; where none answers, `notes` say that this
    was not checked.

    A checkpoint that is refused does not stop the others: its outcome has the status "refused".
    Where all are refused, the first error is raised.

    Raises:
        BadRequest: there is nothing at a path, it holds several checkpoints, a job needs the
            checkpoint, or there is no room.
        BadFile: it has problems, or changed meanwhile; nothing was changed.
        Unsupported: it cannot be thinned, or its file system cannot exchange two names.
    """
    given = bound(ThinKeywords, options)
    thinning = ThinSteps([path_of(each) for each in several(paths)], given)
    found = thinning.planned()
    if given["yes"]:
        with metering(progress) as meter:
            found = thinning.done(found, meter)
    errors = [each.error for each in found.checkpoints if each.error is not None]
    if errors and len(errors) == len(found.checkpoints):
        raise errors[0]
    return found


class ThinSteps:
    """The steps of `thin`: choose and plan first, then do. `given` are bound `ThinKeywords`."""

    def __init__(self, paths: Sequence[Path], given: Mapping[str, Any]) -> None:
        from zerotools.jobs.client.needed_checkpoints import NeedGuard, needs_at

        self._began = time.monotonic()
        self._paths, self._given = paths, given
        self._keep = Keep.WEIGHTS if given["drop_masters"] else Keep.MASTERS
        self._options = ReadOptions(given["tag"], given["layout"], given["section"])
        self._budget: MemoryBudget = budget_of(given)
        self._needed: list[Need] | None = needs_at(given["socket"])
        self._guard: NeedGuard = NeedGuard(given["socket"])
        rules = (given["keep_last"], given["keep_every"], given["older_than"])
        self.is_selecting = any(rule is not None for rule in rules)
        if self.is_selecting and given["tag"] is not None:
            raise BadRequest(
                "--tag names one checkpoint of a directory; leave it or the choice out"
            )

    def planned(self) -> ThinResult:
        """Say what thinning would do."""
        chosen = self._choose() if self.is_selecting else _Chosen(list(self._paths))
        distinct = {path.absolute(): path for path in chosen.paths}.values()
        found = _once([*chosen.refused, *map(self._look, distinct)])
        return self._result(found, tuple(chosen.stays), dry_run=True)

    def done(self, planned: ThinResult, meter: Meter) -> ThinResult:
        """Carry a plan out."""
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
                found = select(
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
            plan = prepare(path, self._keep, self._options)
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
                done = in_place.thin(
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
    """The checkpoints that are meant, and those of a run that stay, with the reasons."""

    paths: list[Path] = field(default_factory=list)
    stays: list[tuple[Path, str]] = field(default_factory=list)
    refused: list[Outcome] = field(default_factory=list)


def _refused(path: Path, error: ZerotoolsError, plan: ThinPlan | None = None) -> Outcome:
    return Outcome(path, Status.REFUSED, plan, error=error)


def _once(looked: Sequence[Outcome]) -> list[Outcome]:
    """Drop those that are another name of one before them: `run`, `run/global_step2`."""
    found: dict[Path, Outcome] = {}
    for each in looked:
        place = each.path.absolute() if each.plan is None else each.plan.subject.resolve()
        found.setdefault(place, each)
    return list(found.values())
