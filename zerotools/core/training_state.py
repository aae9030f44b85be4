"""The training state of a run besides its tensors, in words that all formats share.

A format makes a `TrainingState` from its files, and the writer of another format takes one. A value
that the files do not record is None or empty, and a writer that needs it asks the user.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zerotools.core.checkpoint import Key
from zerotools.core.dtypes import DType

LARGEST_SCALE = 2.0**1023
"""The largest loss scale: integers beyond it are not floats, and a sign of damage."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """One number of optimizer state, such as `step`. `dtype` is the type of the 0-d tensor that it
    was; None: it was a plain number."""

    value: int | float
    dtype: DType | None = None


@dataclass(frozen=True, slots=True)
class ParamGroup:
    """A param group of an optimizer: its parameters' names in the optimizer's order, and all of the
    group's options (`lr`, `betas`, ...) except its parameters."""

    params: tuple[str, ...]
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LossScale:
    """A loss scaler. `options` has the rest of its numbers under DeepSpeed's names (`scale_window`,
    `cur_iter`, ...). `saved_as` is the class of the object that was saved, `module.Name`; two that
    differ in it alone are equal."""

    scale: float
    dynamic: bool
    options: Mapping[str, Any] = field(default_factory=dict)
    saved_as: str | None = field(default=None, compare=False)

    @property
    def is_active(self) -> bool:
        """True if it scales: bf16 and fp32 runs of DeepSpeed have a scaler that multiplies by 1."""
        return self.dynamic or self.scale != 1


@dataclass(frozen=True)
class TrainingState:
    """The state of a run that is not a tensor.

    `scalars` are the numbers of optimizer state by parameter, above all `step`, in the format's own
    way. A scalar that is a tensor may be read on access, and raises `BadFile` if that fails.
    `precision` is the type that the model computes with. `optimizer` is the optimizer's class by
    its short name (`AdamW`), `optimizer_wrapper` the framework's class around it. `steps`,
    `skipped` and `samples` count optimizer steps, steps skipped by overflow, and samples seen.

    `lr_scheduler`, `ds_config` and the values of `client` (the caller's own) are trees of plain
    values (None, bool, int, float, str, bytes, `DType`, and lists, tuples, sets and dicts of them)
    and `Opaque`; tensors in them stay the source format's own objects. `loss_scaler` is the saved
    one.

    `is_ordered` means that groups list their parameters in the optimizer's order. `unnamed` has
    torch's number of each parameter that the files do not name; its name is made from the number.
    `flat` are parameters that stand for several, which follow each other in each tensor of their
    state. `buffers` are weights that cannot be parameters, in formats that do not separate the two.
    `tells_frozen` means that all others that are in no group were frozen parameters.
    """

    groups: tuple[ParamGroup, ...] = ()
    scalars: Mapping[Key, Scalar] = field(default_factory=dict)
    frozen: frozenset[str] = frozenset()
    precision: DType | None = None
    optimizer: str | None = None
    optimizer_wrapper: str | None = None
    steps: int | None = None
    skipped: int | None = None
    samples: int | None = None
    lr_scheduler: Any = None
    loss_scaler: LossScale | None = None
    ds_config: Mapping[str, Any] | None = None
    client: Mapping[str, Any] = field(default_factory=dict)
    is_ordered: bool = True
    unnamed: Mapping[str, int] = field(default_factory=dict)
    flat: frozenset[str] = frozenset()
    buffers: frozenset[str] = frozenset()
    tells_frozen: bool = True

    @property
    def loss_scale(self) -> LossScale | None:
        """The scaler of a run that scales its losses; None if it has no scaler or one that does
        nothing."""
        scaler = self.loss_scaler
        return scaler if scaler is not None and scaler.is_active else None
