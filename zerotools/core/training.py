"""What belongs to a run beside its tensors, in words that all formats share.

A reader's format makes a `TrainingState` of its own files; a writer of another format takes one.
Where nothing says a thing it is None or empty, and a writer that needs it asks the user.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zerotools.core.checkpoint import Key
from zerotools.core.dtypes import DType


@dataclass(frozen=True, slots=True)
class Scalar:
    """One number of optimizer state, such as `step`. `dtype` is the type of the 0-d tensor that it
    was; None: it was a plain number."""

    value: int | float
    dtype: DType | None = None


@dataclass(frozen=True, slots=True)
class ParamGroup:
    """A param group of an optimizer: names in the order in which it was given them, and all of the
    group's options (`lr`, `betas`, ...) but its parameters."""

    params: tuple[str, ...]
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LossScale:
    """An fp16 loss scaler. `options` has the rest of its numbers under DeepSpeed's names
    (`scale_window`, `cur_iter`, ...)."""

    scale: float
    dynamic: bool
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class TrainingState:
    """`scalars` are the numbers of optimizer state by parameter, `step` above all, in whichever way
    the format keeps them. `precision` is the type that the model computes with. `steps`, `skipped`
    and `samples` count optimizer steps, those skipped by overflow, and samples seen.
    `lr_scheduler`, `ds_config` and the values of `client` (the caller's own) are trees of plain
    values and `Opaque`; tensors in them stay the source format's own objects. `is_ordered` says
    whether groups list their parameters in the order in which an optimizer got them. `buffers` are
    weights that cannot have been parameters, in formats that do not tell the two apart."""

    groups: tuple[ParamGroup, ...] = ()
    scalars: Mapping[Key, Scalar] = field(default_factory=dict)
    frozen: frozenset[str] = frozenset()
    precision: DType | None = None
    optimizer: str | None = None
    steps: int | None = None
    skipped: int | None = None
    samples: int | None = None
    lr_scheduler: Any = None
    loss_scale: LossScale | None = None
    ds_config: Mapping[str, Any] | None = None
    client: Mapping[str, Any] = field(default_factory=dict)
    is_ordered: bool = True
    buffers: frozenset[str] = frozenset()
