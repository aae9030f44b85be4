"""Quantised weights where a type is asked for: made plain, kept, or made of plain ones."""

from __future__ import annotations

from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.dtypes import PRECISIONS, DType
from zerotools.core.errors import BadRequest
from zerotools.core.scaling.scaled_cast import ScaledCast
from zerotools.core.target import Target
from zerotools.ops.quantised.dequantise import (
    dequantised,
    dequantised_notes,
    kept_note,
    refuse_bare_cast,
    refuse_unreadable,
    with_config,
    with_true_config,
)
from zerotools.ops.quantised.quantisation import Quantisation
from zerotools.ops.quantised.quantise import QUANTISERS, Quantised, quantised
from zerotools.ops.weights.rewrite import describe

AUTO = "auto"


def in_asked_values(
    checkpoint: Checkpoint, found: Quantisation, dtype: str
) -> tuple[Checkpoint, list[str]]:
    """The checkpoint, with values in place of payloads and scales where a type is asked for, and
    what to say of it.

    Raises:
        BadFile, Unsupported: values were asked for and cannot be made; or the config says that
            weights are quantised, and none is.
    """
    if not found.is_there or dtype in QUANTISERS:
        return checkpoint, []
    if dtype in PRECISIONS:
        return dequantised(checkpoint, found), dequantised_notes(found)
    if dtype == AUTO and found.is_denied and (error := found.error()) is not None:
        raise error
    return checkpoint, [kept_note(found)]


def in_few_bits(
    weights: Checkpoint, described: Checkpoint, found: Quantisation, dtype: str
) -> tuple[Quantised, Checkpoint]:
    """The weights quantised as `dtype` says, and described so: other tensors stay as `described`.

    Raises:
        BadRequest: they are quantised already, or cannot be.
    """
    made = quantised(weights, found, dtype)

    def type_of(key: Key, tensor: Tensor) -> DType:
        return tensor.dtype if isinstance(tensor, ScaledCast) else described.tensors[key].dtype

    return made, describe(made.weights, type_of)


def refuse_quantising(dtype: str) -> None:
    """Raises BadRequest: weights that get another layout are to be quantised, too, in ways that
    other programs do not know."""
    if dtype in QUANTISERS:
        raise BadRequest(
            f"--dtype {dtype} quantises as transformers does, and --map-to is for layouts of "
            "others: map into hf first, and quantise that"
        )


def refuse_bare_casts(source: Checkpoint, target: Target, found: Quantisation) -> None:
    """Refuse a target that has a payload or scales in another type than they have.

    Raises:
        BadFile, Unsupported: names the first.
    """
    for key, tensor in target.checkpoint.tensors.items():
        own = source.tensors.get(key)
        if own is not None and not isinstance(own, ScaledCast):
            refuse_bare_cast(source, found, key, tensor.dtype)


def with_quantised_config(
    target: Target, source: Checkpoint, found: Quantisation, made: Quantised | None, dtype: str
) -> Target:
    """`target` with a config.json that says how its weights are.

    Raises:
        Unsupported: they stay quantised, and no config.json says how.
    """
    if made is not None:
        return with_config(target, source, made.settings, made.note)
    target = with_true_config(target, source, found, is_plain=dtype in PRECISIONS)
    if dtype not in PRECISIONS:
        refuse_unreadable(target, source, found)
    return target
