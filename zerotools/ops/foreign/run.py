"""A checkpoint of another program with its optimizer state, wherever its files have that.

DeepSpeed, universal, torch DCP, .pt files     one checkpoint, as `formats` reads it
model.safetensors, optimizer.pt                the Hugging Face Trainer, on one process or DDP
model.safetensors, optimizer.bin               accelerate's save_state; FSDP's full state dict
mp_rank_00_model_states.pt                     DeepSpeed without ZeRO: the state is by number
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zerotools import formats
from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.dropping import optimizer_roles
from zerotools.core.errors import BadFile, BadRequest, ZerotoolsError
from zerotools.core.ranges import chunk_locations
from zerotools.core.training import TrainingState
from zerotools.formats.format import UnfinishedCheckpoint
from zerotools.io.files.json_file import read_json
from zerotools.io.torchzip.pt_file import TorchFile
from zerotools.runs import checkpoint_dirs

OPTIMIZERS = ("optimizer.pt", "optimizer.bin")
SCHEDULERS = ("scheduler.pt", "scheduler.bin")
TRAINER_STATE = "trainer_state.json"
_LARGEST_STATE = 2**28


@dataclass(frozen=True)
class ForeignRun:
    """`path` is what was asked for, `title` the kind of checkpoint in words.

    `checkpoint` has the weights and the optimizer state, `training` the rest, both under one name
    for each parameter. `beside` says that the optimizer's file lay beside those of a model, whose
    tensors may have the names of the Hub.
    """

    path: Path
    title: str
    checkpoint: Checkpoint
    training: TrainingState
    beside: str | None = None
    numbers: Mapping[Key, int | float] = field(default_factory=dict)

    @property
    def directory(self) -> Path:
        """Where the checkpoint itself lies: `path`, or below it."""
        return self.checkpoint.root

    @property
    def step(self) -> int:
        """Optimizer steps that are done, those that were skipped included."""
        if self.training.steps is not None:
            return self.training.steps
        own = (int(value) for key, value in self.numbers.items() if key.role == "step")
        return max(own, default=0) + (self.training.skipped or 0)


def is_foreign(path: Path) -> bool:
    """Whether `resume_from = path` means a checkpoint of another program, finished or not. Looks at
    names alone."""
    path = checkpoint_dirs.resolve_hint(path)
    if not path.exists() or (path.is_dir() and _is_own(path)):
        return False
    try:
        found = formats.detect(path).path
    except UnfinishedCheckpoint:
        return True
    except ZerotoolsError:
        return False
    return not any((each / checkpoint_dirs.RECORD).exists() for each in (found, found.parent))


def _is_own(path: Path) -> bool:
    return (path / checkpoint_dirs.RECORD).exists() or bool(checkpoint_dirs.listing(path))


def was_made_elsewhere(path: Path) -> bool:
    """Whether `zerotools convert --to job` made `path` of a checkpoint of another program."""
    try:
        return checkpoint_dirs.read_record(checkpoint_dirs.resolve_hint(path)).made_from is not None
    except (ZerotoolsError, OSError):
        return False


def read_run(path: Path, **reading: Any) -> ForeignRun:
    """The checkpoint at `path`, or the newest of the run there; `reading` is as for `formats.read`.
    Reads metadata and single numbers.

    Raises:
        BadRequest: there is nothing at `path`, or no optimizer state in it.
        BadFile: it is not a checkpoint, or a damaged or unfinished one.
        Unsupported: it is of a kind that is not read.
    """
    weights = formats.read_any(path, **reading)
    formats.require_model(weights)
    _refuse_damaged(weights)
    training, form = formats.training_of(weights), formats.format_of(weights)
    record = form.job_record(weights)
    title = record.made_from if record is not None and record.made_from else form.title
    run = ForeignRun(path, title, weights, training)
    if not optimizer_roles(weights) and not _is_stateless(training):
        run = _by_number(run) or _beside(run)
    return replace(run, numbers=_numbers(run))


def _refuse_damaged(weights: Checkpoint) -> None:
    """What is wrong with files that nothing is read from, such as an earlier save's, is no matter;
    tensors that lie in lost ones are found to be incomplete."""
    read: set[str] = set()
    if weights.problems:
        read = {file for t in weights.tensors.values() for file, _ in chunk_locations(t)}
    for problem in weights.problems:
        if problem.blocks or problem.file in read:
            raise BadFile(f"{problem.message}; take another checkpoint")


def _is_stateless(training: TrainingState) -> bool:
    """SGD without momentum keeps nothing."""
    return any("momentum" in g.options and not g.options["momentum"] for g in training.groups)


def _numbers(run: ForeignRun) -> dict[Key, int | float]:
    """Read once, so that a number that is lost is refused before anything is loaded."""
    return {key: scalar.value for key, scalar in run.training.scalars.items()}


def _by_number(run: ForeignRun) -> ForeignRun | None:
    """State that the format has, and its reader gives no names."""
    found = formats.format_of(run.checkpoint).numbered_state(run.checkpoint)
    if found is None:
        return None
    state, training = found
    known = run.training
    training = replace(
        known,
        groups=training.groups,
        scalars=training.scalars,
        unnamed=training.unnamed,
        loss_scaler=training.loss_scaler or known.loss_scaler,
        frozen=frozenset(),
    )
    return replace(run, checkpoint=_joined(run.checkpoint, state), training=training)


def _beside(run: ForeignRun) -> ForeignRun:
    """State in a file beside the model's."""
    root = run.checkpoint.root
    name = next((name for name in OPTIMIZERS if (root / name).is_file()), None)
    if name is None:
        raise BadRequest(
            f"{run.path} holds {run.title} without optimizer state: to start a new run from its "
            "weights, set model.path to them, as zerotools consolidate writes them"
        )
    if (root / "optimizer_1.bin").exists():
        raise BadRequest(f"{root} has the state of several optimizers, and a job has one")
    state = formats.read_any(root / name)
    training = formats.training_of(state)
    schedule = next((_tree(root, each) for each in SCHEDULERS if (root / each).is_file()), None)
    return ForeignRun(
        run.path,
        f"{run.title} and {name}",
        _joined(run.checkpoint, state),
        replace(
            training,
            steps=_global_step(root / TRAINER_STATE),
            lr_scheduler=schedule,
            precision=run.training.precision,
        ),
        beside=name,
    )


def _joined(weights: Checkpoint, state: Checkpoint) -> Checkpoint:
    if weights.root != state.root:
        raise BadFile(f"{weights.root} and {state.root} are not one directory")
    return replace(
        weights,
        tensors={**weights.tensors, **state.tensors},
        files={**weights.files, **state.files},
        stamps={**weights.stamps, **state.stamps},
    )


def _tree(root: Path, name: str) -> Any:
    return TorchFile.open(root, name).tree


def _global_step(path: Path) -> int | None:
    """What the Hugging Face Trainer counts; None: there is no such file."""
    try:
        tree = read_json(path, _LARGEST_STATE)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{path} is not JSON: {error}") from None
    step = tree.get("global_step") if isinstance(tree, dict) else None
    if type(step) is not int or step < 0:
        raise BadFile(f"{path}: global_step is {step!r:.80} and must be an integer >= 0")
    return step
