"""Read the optimizer from a file next to a model, where programs that do not shard the optimizer
save it.

    model.safetensors, optimizer.bin, scheduler.bin, random_states_0.pkl     accelerate's save_state
    model.safetensors, optimizer.pt, scheduler.pt, trainer_state.json        the Trainer

The result is the model's checkpoint, to which the optimizer's tensors are added.
`Checkpoint.optimizer_checkpoint` is the checkpoint of the optimizer file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from zerotools.core.adapter_tensor_names import names_in_model
from zerotools.core.checkpoint import Checkpoint, Key, Problem
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadFile, Unsupported
from zerotools.core.target import optimizer_roles
from zerotools.core.training_state import TrainingState
from zerotools.formats.format import FormatTable
from zerotools.io.files.read_json import read_json
from zerotools.io.huggingface.model_sidecars import optimizer_files

SCHEDULERS = ("scheduler.pt", "scheduler.bin")
TRAINER_STATE = "trainer_state.json"
_LARGEST_STATE = 2**28


def with_optimizer(model: Checkpoint, table: FormatTable) -> Checkpoint:
    """Return `model` with the optimizer from a file in its directory, if there is one.

    If this file cannot be read, the result has a problem or a note instead, and no error is raised:
    the weights do not depend on the file.
    """
    if not table[model.origin.format].is_weights_format or not model.origin.path.is_dir():
        return model
    names = sorted(optimizer_files(model.root))
    if optimizer_roles(model) or not names:
        return model
    if len(names) > 1:
        return _noted(
            model, f"{', '.join(names)} hold several optimizers, which zerotools does not read"
        )
    path = model.root / names[0]
    shapes = {
        key.name: tensor.shape
        for key, tensor in model.tensors.items()
        if key.role == "param" and tensor.dtype.is_float
    }
    form = next(form for form in table.values() if form.find_file(path) is not None)
    try:
        state = form.read_state(path, shapes)
    except BadFile as error:
        problem = Problem(str(error), names[0], is_loss=True)
        return replace(model, problems=[*model.problems, problem])
    except Unsupported as error:
        return _noted(model, f"the state of the optimizer is not read: {error}")
    if not optimizer_roles(state) and not state.state:
        return model
    named = names_in_model(
        (key.name for key in model.tensors), dict.fromkeys(key.name for key in state.tensors)
    )
    weights = {
        Key(named.get(key.name, key.name), key.role): tensor
        for key, tensor in model.tensors.items()
    }
    joined = replace(
        model,
        tensors={**weights, **state.tensors},
        files={**model.files, **state.files},
        optimizer_checkpoint=state,
    )
    return _noted(joined, *_notes(model.root, names[0]), *state.origin.notes)


def _noted(model: Checkpoint, *notes: str) -> Checkpoint:
    return replace(model, origin=replace(model.origin, notes=(*model.origin.notes, *notes)))


def _notes(root: Path, optimizer: str) -> Iterator[str]:
    """Yield a note that names the files of the same run that are next to the model."""
    from zerotools.io.output.files_without_tensors import RANDOM_STATE

    there = {entry.name for entry in root.iterdir() if entry.is_file()}
    taken = [optimizer, *(name for name in (*SCHEDULERS, TRAINER_STATE) if name in there)]
    random = [name for name in there if RANDOM_STATE.fullmatch(name)]
    states = f"; it also has {count_text(len(random), 'file')} of random state" if random else ""
    yield f"took {', '.join(taken)}, next to the model, as the state of its optimizer{states}"


def joined_training(
    model: Checkpoint, training: TrainingState, state: TrainingState
) -> TrainingState:
    """Return the training state of a run: `training` from the model's files, completed with
    `state` from the optimizer's file.

    Raises:
        BadFile: the counters of the Trainer, or the schedule, are damaged.
    """
    root = model.root
    schedule = next((_tree(root, each) for each in SCHEDULERS if (root / each).is_file()), None)
    return replace(
        state,
        steps=_global_step(root / TRAINER_STATE),
        lr_scheduler=schedule,
        precision=training.precision,
    )


def with_steps_of_trainer(checkpoint: Checkpoint, training: TrainingState) -> TrainingState:
    """Return `training` with the steps that the Trainer recorded next to the optimizer, if its
    files do not record them.

    Raises:
        BadFile: the counters of the Trainer are damaged.
    """
    if training.steps is not None or not training.groups or not checkpoint.root.is_dir():
        return training
    return replace(training, steps=_global_step(checkpoint.root / TRAINER_STATE))


def _tree(root: Path, name: str) -> Any:
    from zerotools.io.torchzip.pt_file import TorchFile  # most models have no such file

    try:
        return TorchFile.open(root, name).tree
    except Unsupported:
        return None


def _global_step(path: Path) -> int | None:
    """Return the number of steps that the Hugging Face Trainer recorded in trainer_state.json, or
    None if this file does not exist.
    """
    try:
        tree = read_json(path, _LARGEST_STATE)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{path} is not JSON: {error}; copy or download it again") from None
    step = tree.get("global_step") if isinstance(tree, dict) else None
    if type(step) is not int or step < 0:
        raise BadFile(
            f"{path}: global_step is {step!r:.80}, but must be an integer >= 0; copy or download "
            "the file again"
        )
    return step
