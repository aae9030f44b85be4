"""Quantised weights where a type is asked for: made plain, kept, or made of plain ones."""

from __future__ import annotations

from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.dtypes import PRECISIONS, DType
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.core.scaling.scaled_cast import ScaledCast
from zerotools.core.target import Target
from zerotools.ops.quantised.dequantise import (
    dequantised,
    dequantised_notes,
    kept_note,
    with_config,
    with_plain_config,
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
        Unsupported: names the first.
    """
    names = {part.name for each in found.weights.values() for part in each.parts}
    names |= {name for _, name in found.faults if name is not None}
    for key, tensor in target.checkpoint.tensors.items():
        own = source.tensors.get(key)
        if own is None or isinstance(own, ScaledCast) or own.dtype == tensor.dtype:
            continue
        if key.name in names or (own.dtype.is_float and own.dtype.bits < 16):
            raise Unsupported(
                f"{source.origin.path}: {key.name} is {own.dtype} and would become {tensor.dtype} "
                "without its scales; make the weights plain first, by zerotools consolidate "
                "--dtype bf16"
            )


def with_quantised_config(
    target: Target, source: Checkpoint, found: Quantisation, made: Quantised | None, dtype: str
) -> Target:
    """`target` with a config.json that says how its weights are."""
    if made is not None:
        return with_config(target, source, made.settings, made.note)
    if found.config is not None and dtype in PRECISIONS:
        return with_plain_config(target, source)
    return target
