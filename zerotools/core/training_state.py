"""The training state of a run without its tensors, in one form for all formats.

A format creates a `TrainingState` from its files, and the writer of another format uses it. A value
that the files do not record stays None or empty, and a writer that needs it asks the user.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.dtypes import BFLOAT16, FLOAT16, DType

LARGEST_SCALE = 2.0**1023
"""The largest valid loss scale. A larger integer cannot be a float, and is a sign of damage."""


@dataclass(frozen=True, slots=True)
class Scalar:
    """One number in the optimizer state of a parameter, such as `step`.

    `dtype` is the dtype of the 0-d tensor that stored it, or None if it was a plain number.
    """

    value: int | float
    dtype: DType | None = None


@dataclass(frozen=True, slots=True)
class ParamGroup:
    """A param group of an optimizer.

    `params` are the parameter names in the optimizer's order; `options` are all other values of the
    group (`lr`, `betas`, ...).
    """

    params: tuple[str, ...]
    options: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LossScale:
    """The loss scaler of a run, which multiplies the loss by `scale`.

    `options` has its other numbers under DeepSpeed's names (`scale_window`, `cur_iter`, ...).
    `saved_as` is the class of the saved object, `module.Name`, and is ignored in comparisons.
    """

    scale: float
    dynamic: bool
    options: Mapping[str, Any] = field(default_factory=dict)
    saved_as: str | None = field(default=None, compare=False)

    @property
    def is_active(self) -> bool:
        """True if the scaler changes the loss. DeepSpeed's bf16 and fp32 runs have a scaler that
        multiplies by 1.
        """
        return self.dynamic or self.scale != 1


@dataclass(frozen=True)
class TrainingState:
    """The state of a run that is not a tensor.

    Trees of plain values consist of None, bool, int, float, str, bytes, `DType`, `Opaque`, and
    lists, tuples, sets and dicts of them. A tensor in such a tree is an object of the source
    format.

    Attributes:
        groups: the param groups of the optimizer.
        scalars: key -> a number in the optimizer state of a parameter, mainly `step`, as the format
            stores it. A number that is stored as a tensor may be read only on access, which can
            raise `BadFile`.
        precision: the dtype in which the model computes.
        optimizer, optimizer_wrapper: the short class name of the optimizer (`AdamW`), and the
            framework's class around it.
        steps, skipped, samples: the number of optimizer steps, of steps that were skipped because
            of an overflow, and of samples seen.
        lr_scheduler, ds_config, client: trees of plain values. `client` has values that the
            training program itself saved.
        loss_scaler: the saved loss scaler.
        is_ordered: True if the groups list their parameters in the optimizer's order.
        unnamed: parameter name -> torch's number, for parameters that have only numbers in the
            files. Their names here are made from these numbers.
        flattened_parameters: names of parameters that each consist of several parameters of the
            model, flattened and joined, both in the weights and in the optimizer state.
        buffers: names of weights that cannot be parameters, for formats that do not separate
            buffers from parameters.
        knows_frozen: True if every weight that is neither in a group nor in `buffers` is a frozen
            parameter.
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
    flattened_parameters: frozenset[str] = frozenset()
    buffers: frozenset[str] = frozenset()
    knows_frozen: bool = True

    @property
    def loss_scale(self) -> LossScale | None:
        """The loss scaler; None if the run has no loss scaler, or one that multiplies by 1."""
        scaler = self.loss_scaler
        return scaler if scaler is not None and scaler.is_active else None

    def with_counted_steps(self) -> TrainingState:
        """Return this state with the largest `step` of the optimizer as `steps`, if the run did not
        save its own count.
        """
        if self.steps is not None:
            return self
        counts = (scalar.value for key, scalar in self.scalars.items() if key.role == "step")
        return replace(self, steps=int(max(counts, default=0)) or None)


def weights_dtype(checkpoint: Checkpoint) -> DType | None:
    """Return the floating-point dtype of most bytes of the weights, or None."""
    sizes: dict[DType, int] = {}
    for key, tensor in checkpoint.tensors.items():
        if key.role == "param" and tensor.dtype.is_float:
            sizes[tensor.dtype] = sizes.get(tensor.dtype, 0) + tensor.nbytes
    return max(sizes, key=sizes.__getitem__, default=None)


def trained_precision(checkpoint: Checkpoint) -> DType | None:
    """Return the dtype that the model computes in: the dtype of its weights, if it has 16 bits.

    For other weights return None: a model may cast fp32 weights before it computes.
    """
    dtype = weights_dtype(checkpoint)
    return dtype if dtype in (FLOAT16, BFLOAT16) else None
