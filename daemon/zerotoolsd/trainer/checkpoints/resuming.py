"""Where the run goes on: the choice of a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from zerotools.core.errors import BadFile
from zerotools.jobs.tables.spec import JobSpec
from zerotools.ops.foreign.run import is_foreign
from zerotools.runs import checkpoint_dirs
from zerotools.runs.record import JobRecord
from zerotoolsd.trainer.checkpoints.committing import clear_leftovers
from zerotoolsd.trainer.checkpoints.structure import check_structure
from zerotoolsd.trainer.engine.foreign_start import ForeignStart, adopt
from zerotoolsd.trainer.model.meta_model import MetaModel
from zerotoolsd.trainer.rank.failures import BadCheckpoint
from zerotoolsd.trainer.rank.group import WorldGroup


@dataclass(frozen=True)
class ResumePoint:
    """The checkpoint to go on from, and those that were passed over. Another program saved it where
    there is `foreign`. `verified` says how its bytes were checked, as `checkpoint_dirs` has it."""

    path: Path
    record: JobRecord
    skipped: tuple[checkpoint_dirs.SkippedCheckpoint, ...] = ()
    foreign: ForeignStart | None = None
    verified: str | None = None


@dataclass(frozen=True)
class ResumeDecision:
    """`start` is None for a run that begins at step 0, or from `foreign`, the path of a checkpoint
    of another program."""

    start: ResumePoint | None
    skipped: tuple[checkpoint_dirs.SkippedCheckpoint, ...] = ()
    foreign: Path | None = None


def adopted(path: Path, spec: JobSpec, meta_model: MetaModel) -> ResumePoint:
    """The checkpoint of another program at `path` as where the run goes on.

    Raises:
        ZerotoolsError: the job cannot go on from it.
    """
    start = adopt(path, spec, meta_model)
    return ResumePoint(start.run.directory, start.record, foreign=start)


def choose_resume_point(spec: JobSpec, group: WorldGroup) -> ResumeDecision:
    """Where the run goes on, decided and verified by rank 0.

    An attempt that was restarted resumes from the newest complete checkpoint of its own; the first
    one from `resume_from`. Of the two, the one that is ahead wins; over a checkpoint of another
    program, which the run has begun with, all of its own do.

    Raises:
        BadRequest: `resume_from` is not a checkpoint.
        BadCheckpoint: it is damaged, or all of the run's own are.
    """
    return group.decided_by_rank_zero(lambda: _decide(spec))


def _decide(spec: JobSpec) -> ResumeDecision:
    output_dir = Path(spec.output_dir or "")
    clear_leftovers(output_dir)
    own = checkpoint_dirs.choose(output_dir, trusting=True, structure=check_structure)
    elsewhere = spec.resume_from is not None and is_foreign(Path(spec.resume_from))
    if elsewhere and own.path is None and not own.skipped:
        return ResumeDecision(None, foreign=Path(spec.resume_from or ""))
    if spec.resume_from is not None and not elsewhere:
        above = own.record.step if own.record is not None else -1
        given = _given(checkpoint_dirs.resolve_hint(Path(spec.resume_from)), above)
        if given is not None:
            return ResumeDecision(given, (*own.skipped, *given.skipped))
    if own.path is not None and own.record is not None:
        return ResumeDecision(ResumePoint(own.path, own.record, verified=own.how), own.skipped)
    if own.skipped:
        raise BadCheckpoint(
            f"{output_dir} has checkpoints, but none is complete ({own.skipped[0].why}): "
            "move them away to start at step 0"
        )
    return ResumeDecision(None)


def _given(path: Path, above: int) -> ResumePoint | None:
    if above >= 0 and not _is_ahead(path, above):
        return None
    try:
        choice = checkpoint_dirs.resolve(path, trusting=True, structure=check_structure)
    except BadFile as error:
        raise BadCheckpoint(str(error)) from None
    assert choice.path is not None
    assert choice.record is not None
    return ResumePoint(choice.path, choice.record, choice.skipped, verified=choice.how)


def _is_ahead(path: Path, above: int) -> bool:
    try:
        if (path / checkpoint_dirs.RECORD).exists():
            return checkpoint_dirs.read_record(path).step > above
    except BadFile:
        return False
    steps = [
        checkpoint_dirs.step_of(directory.name) or 0 for directory in checkpoint_dirs.listing(path)
    ]
    return (
        any(step > above for step in steps)
        and checkpoint_dirs.choose(path, above=above, trusting=True, structure=check_structure).path
        is not None
    )
