"""Read a checkpoint of another program with its optimizer state, in one file or in several.

DeepSpeed, universal, torch DCP, .pt files     one checkpoint, read by `formats`
model.safetensors, optimizer.pt                the Hugging Face Trainer, on one process or DDP
model.safetensors, optimizer.bin               accelerate's save_state; FSDP's full state dict
mp_rank_00_model_states.pt                     DeepSpeed without ZeRO: the state is numbered
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

from zerotools import formats
from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.errors import BadFile, BadRequest, ZerotoolsError
from zerotools.core.flat_ranges import chunk_locations
from zerotools.core.target import optimizer_roles
from zerotools.core.training_state import TrainingState
from zerotools.formats.format import UnfinishedCheckpoint
from zerotools.io.huggingface.model_sidecars import optimizer_files
from zerotools.ops.resume_from_other_program.name_numbered_state import with_numbered_state
from zerotools.runs import find_job_checkpoints


@dataclass(frozen=True)
class ForeignRun:
    """A checkpoint that another program wrote, in the form that a job needs to continue from it.

    Attributes:
        path: the path that the user gave.
        title: the kind of checkpoint in words.
        checkpoint: the weights and the tensors of the optimizer state.
        training: the training state without tensors. It uses the same parameter names as
            `checkpoint`.
        optimizer_file: the name of the optimizer's file if weights and optimizer state are in
            separate files, else None. With separate files, tensors may have the names of the Hub.
        numbers: the plain numbers of the optimizer state.
        notes: sentences that say where the names come from.
    """

    path: Path
    title: str
    checkpoint: Checkpoint
    training: TrainingState
    optimizer_file: str | None = None
    numbers: Mapping[Key, int | float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def directory(self) -> Path:
        """The directory of the checkpoint itself: `path`, or a directory below it."""
        return self.checkpoint.root

    @property
    def step(self) -> int:
        """The number of optimizer steps done, including skipped ones."""
        if self.training.steps is not None:
            return self.training.steps
        own = (int(value) for key, value in self.numbers.items() if key.role == "step")
        return max(own, default=0) + (self.training.skipped or 0)


def is_foreign(path: Path) -> bool:
    """Return whether `path`, the value of `resume_from`, is a checkpoint of another program,
    finished or not. Only file names are read."""
    path = find_job_checkpoints.resolve_hint(path)
    if not path.exists() or (path.is_dir() and _is_own(path)):
        return False
    try:
        found = formats.detect(path).path
    except UnfinishedCheckpoint:
        return True
    except ZerotoolsError:
        return False
    return not any((each / find_job_checkpoints.RECORD).exists() for each in (found, found.parent))


def _is_own(path: Path) -> bool:
    return (path / find_job_checkpoints.RECORD).exists() or bool(
        find_job_checkpoints.list_checkpoints(path)
    )


def was_made_elsewhere(path: Path) -> bool:
    """Return whether `zerotools convert --to job` made `path` from another program's checkpoint."""
    try:
        return (
            find_job_checkpoints.read_record(find_job_checkpoints.resolve_hint(path)).made_from
            is not None
        )
    except (ZerotoolsError, OSError):
        return False


def read_run(path: Path, **reading: Any) -> ForeignRun:
    """Read the checkpoint at `path`, or the newest checkpoint of the run there. `reading` are
    further keyword arguments for `formats.read_any`. Only metadata and single numbers are read.

    Raises:
        BadRequest: `path` does not exist, or has no optimizer state.
        BadFile: `path` is not a checkpoint, or is damaged or unfinished.
        Unsupported: zerotools does not read this kind of checkpoint.
    """
    weights = formats.read_any(path, **reading)
    formats.require_model(weights)
    _refuse_damaged(weights)
    training, form = formats.training_of(weights), formats.format_of(weights)
    record = form.job_record(weights)
    title = record.made_from if record is not None and record.made_from else form.title
    run = ForeignRun(path, title, weights, training)
    if weights.optimizer_checkpoint is not None:
        name = weights.optimizer_checkpoint.origin.path.name
        run = replace(run, title=f"{title} and {name}", optimizer_file=name)
    elif not optimizer_roles(weights) and not _is_stateless(training):
        run = _by_number(run) or _refuse_stateless(run)
    return replace(run, numbers=_numbers(run))


def _refuse_stateless(run: ForeignRun) -> NoReturn:
    root = run.checkpoint.root
    names = sorted(optimizer_files(root)) if run.checkpoint.origin.path.is_dir() else []
    for problem in run.checkpoint.problems:
        if problem.file in names:
            raise BadFile(f"{problem.message}; take another checkpoint")
    if len(names) > 1:
        raise BadRequest(f"{root} has the state of several optimizers, but a job has only one")
    raise BadRequest(
        f"{run.path} holds {run.title} without optimizer state: to start a new run from its "
        "weights, write them with zerotools consolidate, and set model.path to the output"
    )


def _refuse_damaged(weights: Checkpoint) -> None:
    """Refuse a checkpoint if a file that holds its tensors is damaged. Problems of other files,
    such as those of an earlier save, are ignored. A later check finds tensors in lost files."""
    read: set[str] = set()
    if weights.problems:
        read = {file for t in weights.tensors.values() for file, _ in chunk_locations(t)}
    for problem in weights.problems:
        if problem.prevents_output or problem.is_unread or problem.file in read:
            raise BadFile(f"{problem.message}; take another checkpoint")


def _is_stateless(training: TrainingState) -> bool:
    """Return whether the optimizer keeps no state, such as SGD without momentum."""
    return any("momentum" in g.options and not g.options["momentum"] for g in training.groups)


def _numbers(run: ForeignRun) -> dict[Key, int | float]:
    """Read the plain numbers of the optimizer state, such as `step`. They are read first, so that
    an error is found before tensors are loaded."""
    return {key: scalar.value for key, scalar in run.training.scalars.items()}


def _by_number(run: ForeignRun) -> ForeignRun | None:
    """Return `run` with optimizer state that has numbers in place of parameter names. Return None
    if the checkpoint has no such state.
    """
    found = with_numbered_state(run.checkpoint, run.training)
    return None if found is None else replace(run, checkpoint=found[0], training=found[1])
