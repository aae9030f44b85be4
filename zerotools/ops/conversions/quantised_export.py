"""Quantised weights in an export. `--dtype` decides whether they are dequantised, kept, or made
from plain weights.
"""

from __future__ import annotations

from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.dtypes import PRECISIONS, DType
from zerotools.core.errors import BadRequest
from zerotools.core.scaled_cast import ScaledCast
from zerotools.core.target import Target
from zerotools.ops.quantised.dequantise import (
    dequantise_checkpoint,
    dequantised_notes,
    kept_note,
    refuse_bare_cast,
    refuse_unreadable,
    with_config,
    with_true_config,
)
from zerotools.ops.quantised.quantise import QUANTISERS, Quantised, quantise_weights
from zerotools.ops.quantised.quantised_weights import Quantisation
from zerotools.ops.weights.select_and_rename import describe_output

AUTO, KEEP = "auto", "keep"


def dequantise_if_requested(
    checkpoint: Checkpoint, found: Quantisation, dtype: str
) -> tuple[Checkpoint, list[str]]:
    """Return the checkpoint, and notes. Its quantised weights are dequantised if `dtype` is a
    precision such as `bf16`, else kept.

    Raises:
        BadFile, Unsupported: the values cannot be computed; or config.json declares quantised
            weights, and the checkpoint has none.
    """
    if not found.is_there or dtype in QUANTISERS:
        return checkpoint, []
    if dtype in PRECISIONS:
        return dequantise_checkpoint(checkpoint, found), dequantised_notes(found)
    if dtype == AUTO and found.is_only_declared and (error := found.error()) is not None:
        raise error
    return checkpoint, [kept_note(found)]


def quantise_and_describe(
    weights: Checkpoint, described: Checkpoint, found: Quantisation, dtype: str
) -> tuple[Quantised, Checkpoint]:
    """Quantise the weights with the quantiser `dtype`. Return the result, and a description of the
    output. In the output, tensors that are not quantised have the dtypes of `described`.

    Raises:
        BadRequest: the weights are quantised already, or cannot be quantised.
    """
    made = quantise_weights(weights, found, dtype)

    def type_of(key: Key, tensor: Tensor) -> DType:
        return tensor.dtype if isinstance(tensor, ScaledCast) else described.tensors[key].dtype

    return made, describe_output(made.weights, type_of)


def refuse_quantising(dtype: str) -> None:
    """Refuse to quantise weights that are also converted to another layout, because programs with
    other layouts cannot read such weights.

    Raises:
        BadRequest: `dtype` is the name of a quantiser.
    """
    if dtype in QUANTISERS:
        raise BadRequest(
            f"--dtype {dtype} quantises like transformers and cannot be combined with --map-to; "
            "convert to hf with --map-to first, and quantise the result"
        )


def refuse_bare_casts(source: Checkpoint, target: Target, found: Quantisation) -> None:
    """Refuse a target that stores quantised payloads or scales in another dtype than the source.

    Raises:
        BadFile, Unsupported: a dtype differs. The message names the first such tensor.
    """
    for key, tensor in target.checkpoint.tensors.items():
        own = source.tensors.get(key)
        if own is not None and not isinstance(own, ScaledCast):
            refuse_bare_cast(source, found, key, tensor.dtype)


def with_quantised_config(
    target: Target, source: Checkpoint, found: Quantisation, made: Quantised | None, dtype: str
) -> Target:
    """Return `target` with a config.json that describes its weights.

    Raises:
        Unsupported: the weights stay quantised, and no config.json describes how.
    """
    if made is not None:
        return with_config(target, source, made.settings, made.note)
    target = with_true_config(target, source, found, is_plain=dtype in PRECISIONS)
    if dtype not in PRECISIONS:
        refuse_unreadable(target, source, found)
    return target
