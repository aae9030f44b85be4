"""Chooses the checkpoint that a run continues from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadFile, ZerotoolsError
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.ops.resume_from_other_program.foreign_run import is_foreign
from zerotools.runs import find_job_checkpoints
from zerotools.runs.training_record import JobRecord
from zerotools.runs.upload_records import FETCHED
from zerotoolsd.supervisor.transient_os_errors import is_transient
from zerotoolsd.trainer.checkpoints.commit_and_delete_checkpoints import (
    check_structure,
    clear_leftovers,
)
from zerotoolsd.trainer.engine.start_from_other_program import ForeignStart, make_foreign_start
from zerotoolsd.trainer.model.meta_model import MetaModel
from zerotoolsd.trainer.rank.process_group import WorldGroup
from zerotoolsd.trainer.rank.rank_errors import BadCheckpoint, CheckpointGone, MachineNotReady

Value = TypeVar("Value")


@dataclass(frozen=True)
class ResumePoint:
    """The checkpoint that the run continues from, at `path`, with its `record`.

    Attributes:
        skipped: the damaged or missing checkpoints that could not be used.
        foreign: the data of a checkpoint that another program saved; None for a checkpoint of
            zerotools.
        verified: how the bytes of the checkpoint were checked, a constant of
            `find_job_checkpoints`.
    """

    path: Path
    record: JobRecord
    skipped: tuple[find_job_checkpoints.SkippedCheckpoint, ...] = ()
    foreign: ForeignStart | None = None
    verified: str | None = None


@dataclass(frozen=True)
class ResumeDecision:
    """The choice of `choose_resume_point`: the state in which the run begins.

    There are three cases:

    - `start` is a checkpoint of zerotools, from which the run continues.
    - `foreign` is the path of a checkpoint of another program, from which the run continues.
    - Both are None: the run begins at step 0.

    `skipped` are the checkpoints that cannot be used.
    """

    start: ResumePoint | None
    skipped: tuple[find_job_checkpoints.SkippedCheckpoint, ...] = ()
    foreign: Path | None = None

    @property
    def path(self) -> Path | None:
        """The path of the chosen checkpoint, of zerotools or of another program; None if the run
        begins at step 0.
        """
        return self.foreign if self.start is None else self.start.path


def foreign_resume_point(path: Path, spec: JobSpec, meta_model: MetaModel) -> ResumePoint:
    """Read the checkpoint of another program at `path`, and return it as a `ResumePoint`.

    `meta_model` is the model of the job `spec`.

    Raises:
        ZerotoolsError: the job cannot continue from the checkpoint.
    """
    start = make_foreign_start(path, spec, meta_model)
    return ResumePoint(start.run.directory, start.record, foreign=start)


def choose_resume_point(spec: JobSpec, group: WorldGroup, saved_step: int = 0) -> ResumeDecision:
    """Choose the checkpoint that the run continues from. Rank 0 chooses and verifies it for all
    ranks.

    A restarted attempt continues from the newest complete checkpoint of this run. A first attempt
    continues from `resume_from`. If both checkpoints exist, the run continues from the checkpoint
    with the later step. But if `resume_from` is a checkpoint of another program, the run continues
    from the checkpoint of this run.

    `saved_step` is the newest step that an earlier attempt saved.

    Raises:
        BadRequest: `resume_from` is not a checkpoint.
        BadCheckpoint: the checkpoint is damaged; or a step was saved, but no checkpoint of this run
            can be used, so that the run would begin again at step 0.
        MachineNotReady: a disk or a file server has a transient error.
    """
    output_dir = Path(spec.output_dir or "")
    return group.decided_by_rank_zero(
        lambda: with_not_ready(lambda: _decide(spec, saved_step), output_dir)
    )


def with_not_ready(read: Callable[[], Value], directory: Path) -> Value:
    """Call `read`, which reads files below `directory`, and return its result.

    Raises:
        MachineNotReady: the disk or the file server has a transient error.
    """
    try:
        return read()
    except OSError as error:
        if not is_transient(error):
            raise
        place = error.filename or directory
        raise MachineNotReady(f"{place} cannot be read: {error.strerror}") from None


def load_error(path: Path, error: BadCheckpoint) -> ZerotoolsError:
    """Return the error with which the rank ends, because the checkpoint at `path` could not be
    loaded.

    This is usually `error`, which the load raised. If the files of the checkpoint have changed
    since it was chosen, or the disk has a transient error, the returned error says so.
    """
    trouble = _trouble(error)
    try:
        find_job_checkpoints.verify_checkpoint_files(path, digests=False)
    except BadFile as found:
        return CheckpointGone(f"{path} was complete, but changed while it was loaded: {found}")
    except OSError as found:
        trouble = trouble or found
    if trouble is not None and is_transient(trouble):
        return MachineNotReady(f"{path} cannot be read: {trouble.strerror}")
    return error


def _trouble(error: BaseException | None) -> OSError | None:
    while error is not None and not isinstance(error, OSError):
        error = error.__cause__
    return error


def _decide(spec: JobSpec, saved_step: int) -> ResumeDecision:
    output_dir = Path(spec.output_dir or "")
    clear_leftovers(output_dir)
    own = _own(output_dir, saved_step)
    elsewhere = spec.resume_from is not None and is_foreign(Path(spec.resume_from))
    if elsewhere and own.path is None and not own.skipped:
        return ResumeDecision(None, foreign=Path(spec.resume_from or ""))
    had = own.path is not None and spec.resume_from == str(output_dir / FETCHED)
    if spec.resume_from is not None and not elsewhere and not had:
        above = own.record.step if own.record is not None else -1
        given = _resolve_path(find_job_checkpoints.resolve_hint(Path(spec.resume_from)), above)
        if given is not None:
            return ResumeDecision(given, (*own.skipped, *given.skipped))
    if own.path is not None and own.record is not None:
        return ResumeDecision(ResumePoint(own.path, own.record, verified=own.how), own.skipped)
    if own.skipped:
        raise BadCheckpoint(_none_is_whole(output_dir, own.skipped))
    return ResumeDecision(None)


def _own(output_dir: Path, saved_step: int) -> find_job_checkpoints.ResumeChoice:
    """Choose the checkpoint in `output_dir` to resume from.

    `saved_step` is the newest step that an earlier attempt saved. If the checkpoint of this step is
    missing, it is added to the skipped checkpoints.
    """
    own = find_job_checkpoints.newest_valid(output_dir, trusting=True, structure=check_structure)
    saved = output_dir / find_job_checkpoints.directory_name(saved_step)
    found = -1 if own.record is None else own.record.step
    if saved_step <= max(found, 0) or any(each.path == saved for each in own.skipped):
        return own
    gone = find_job_checkpoints.SkippedCheckpoint(
        saved, f"{saved} was saved by an earlier attempt, but no longer exists"
    )
    return replace(own, skipped=(gone, *own.skipped))


def _none_is_whole(
    output_dir: Path, skipped: Sequence[find_job_checkpoints.SkippedCheckpoint]
) -> str:
    older = f"; {count_text(len(skipped) - 1, 'older one')} cannot be used either"
    return (
        "no checkpoint of this job is complete, and the job does not begin again at step 0 by "
        f"itself. The newest: {skipped[0].why}{older if len(skipped) > 1 else ''}; put a complete "
        "checkpoint back and resume the job; or, to begin at step 0, move the checkpoints out of "
        f"{output_dir} and resume the job"
    )


def _resolve_path(path: Path, above: int) -> ResumePoint | None:
    if above >= 0 and not _is_ahead(path, above):
        return None
    try:
        choice = find_job_checkpoints.resolve_resume_from(
            path, trusting=True, structure=check_structure
        )
    except BadFile as error:
        raise BadCheckpoint(str(error)) from None
    assert choice.path is not None
    assert choice.record is not None
    return ResumePoint(choice.path, choice.record, choice.skipped, verified=choice.how)


def _is_ahead(path: Path, above: int) -> bool:
    try:
        if (path / find_job_checkpoints.RECORD).exists():
            return find_job_checkpoints.read_record(path).step > above
    except BadFile:
        return False
    steps = [
        find_job_checkpoints.step_of(directory.name) or 0
        for directory in find_job_checkpoints.list_checkpoints(path)
    ]
    return (
        any(step > above for step in steps)
        and find_job_checkpoints.newest_valid(
            path, above=above, trusting=True, structure=check_structure
        ).path
        is not None
    )
