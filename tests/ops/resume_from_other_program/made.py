"""Checkpoints of other programs that tests make up: no bytes, only names, shapes and groups."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Origin, Tensor
from zerotools.core.dtypes import FLOAT32, DType
from zerotools.core.training_state import ParamGroup, TrainingState
from zerotools.ops.resume_from_other_program.foreign_run import ForeignRun
from zerotools.ops.resume_from_other_program.rename_to_job import WantedModel

PATH = Path("/elsewhere")
SHAPES = {"embed.weight": (8, 4), "norm.weight": (4,), "head.weight": (8, 4)}
OPTIONS = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
ADAM = {**OPTIONS, "amsgrad": False, "decoupled_weight_decay": True}
WANTED = WantedModel(SHAPES, {}, {})


def tensor(shape: tuple[int, ...], dtype: DType = FLOAT32) -> Tensor:
    return Tensor(dtype, shape, (Chunk(Box.whole(shape), "file", 0),))


def made(
    shapes: Mapping[str, tuple[int, ...]] = SHAPES,
    *,
    roles: tuple[str, ...] = ("exp_avg", "exp_avg_sq"),
    options: Mapping[str, Any] = ADAM,
    trained: tuple[str, ...] | None = None,
    dtype: DType = FLOAT32,
    **training: Any,
) -> ForeignRun:
    """A run whose optimizer has `roles` of the `trained` parameters (None: all)."""
    names = tuple(shapes) if trained is None else trained
    tensors = {Key(name, "param"): tensor(shape, dtype) for name, shape in shapes.items()}
    tensors |= {Key(name, role): tensor(shapes[name]) for name in names for role in roles}
    state = TrainingState(
        **{"groups": (ParamGroup(names, options),), "steps": 5, **training}  # type: ignore[arg-type]
    )
    return ForeignRun(PATH, "a made-up one", Checkpoint(PATH, tensors, Origin("made", PATH)), state)
