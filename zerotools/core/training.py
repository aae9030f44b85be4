"""What belongs to a run besides its tensors, in words that all formats share.

A reader's format makes a `TrainingState` from its files; a writer of another format takes one.
Where nothing says a thing it is None or empty, and a writer that needs it asks the user.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from zerotools.core.checkpoint import Key
from zerotools.core.dtypes import DType

LARGEST_SCALE = 2.0**1023
"""Of losses: integers beyond it are no floats, and damage."""


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
    """A loss scaler. `options` has the rest of its numbers under DeepSpeed's names (`scale_window`,
    `cur_iter`, ...). `saved_as` is the class of the object that was saved, `module.Name`; two that
    differ in it alone are equal."""

    scale: float
    dynamic: bool
    options: Mapping[str, Any] = field(default_factory=dict)
    saved_as: str | None = field(default=None, compare=False)

    @property
    def is_active(self) -> bool:
        """Whether it scales: bf16 and fp32 runs of DeepSpeed have one that multiplies by 1."""
        return self.dynamic or self.scale != 1


@dataclass(frozen=True)
class TrainingState:
    """`scalars` are the numbers of optimizer state by parameter, `step` above all, in whichever way
    the format keeps them; one that is a tensor may be read when it is asked for, and raises
    `BadFile` where it cannot be. `precision` is the type that the model computes with. `optimizer`
    is the optimizer's class by its short name (`AdamW`), `optimizer_wrapper` the framework's class
    around it. `steps`, `skipped` and `samples` count optimizer steps, those skipped by overflow,
    and samples seen. `lr_scheduler`, `ds_config` and the values of `client` (the caller's own) are
    trees of plain values (None, bool, int, float, str, bytes, `DType`, and lists, tuples, sets and
    dicts of them) and `Opaque`; tensors in them stay the source format's own objects.
    `loss_scaler` is the one that was saved. `is_ordered` says whether groups list their parameters
    in the order in which an optimizer got them. `unnamed` has torch's number of each parameter of
    the groups that the files do not name: its name there is made up of the number. `flat` are those
    that stand for several parameters, which lie one after another in each tensor of their state.
    `buffers` are weights that cannot have been parameters, in formats that do not tell the two
    apart; `tells_frozen` says whether all others that no group has were frozen parameters."""

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
        """The scaler of a run whose losses are scaled; None: there is none, or it does nothing."""
        scaler = self.loss_scaler
        return scaler if scaler is not None and scaler.is_active else None
