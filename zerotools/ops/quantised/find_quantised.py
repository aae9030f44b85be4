"""Find the quantised weights of a checkpoint by the names, dtypes and shapes of its tensors, and by
the `quantization_config` of its config.json.

Names show which tensors belong together, and the config gives the block of elements that shares a
scale. If names and config disagree, or a tensor of few bits has no scales, zerotools does not
guess: it records a fault, and refuses to compute values.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from zerotools.core import dtypes
from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.ops.quantised.quantisation_config import (
    FORMATS,
    KINDS,
    QuantisationConfig,
    config_fault,
    quantisation_config,
)
from zerotools.ops.quantised.quantised_weights import Quantisation, QuantisedWeight, UnprovedScales

_EIGHT = frozenset({
    dtypes.FLOAT8_E4M3FN, dtypes.FLOAT8_E5M2, dtypes.FLOAT8_E4M3FNUZ, dtypes.FLOAT8_E5M2FNUZ,
    dtypes.FLOAT8_E8M0FNU,
})  # fmt: skip
_INTEGERS = {
    dtypes.INT8: (".weight", ".weight_packed", ".qweight", "_blocks"),
    dtypes.UINT8: (".weight", ".weight_packed", ".qweight", "_blocks"),
    dtypes.INT32: (".weight_packed", ".qweight"),
}
"""The ends of the names of payloads, keyed by their integer dtype."""
_SCALES = (".weight_scale_inv", ".weight_scale", ".weight_scale_2", ".weight_global_scale",
           ".weight.absmax", ".SCB")  # fmt: skip
_ACTIVATIONS = (
    ".input_scale", ".activation_scale", ".input_global_scale", ".output_scale", ".k_scale",
    ".v_scale", ".q_scale",
)  # fmt: skip
_STATE = ".quant_state."
"""Part of the names of the tensors with which bitsandbytes describes its 4-bit weights."""
_ROLES = ("param", "buffer", "param16")


def find_quantised(checkpoint: Checkpoint) -> Quantisation:
    """Return the quantised weights. Only config.json is read, and for weights of bitsandbytes also
    small tensors that contain JSON.

    Raises:
        BadFile: config.json cannot be read.
    """
    config = quantisation_config(checkpoint.own_config)
    tensors = {key: t for key, t in checkpoint.tensors.items() if key.role in _ROLES}
    weights: dict[Key, QuantisedWeight] = {}
    faults: list[tuple[str, str | None]] = []
    unproved: list[UnprovedScales] = []
    blocks = config.blocks() if config is not None else ()
    of_any_dtype = any(_STATE in key.name for key in tensors)
    for key, tensor in tensors.items():
        if not _may_be_payload(key, tensor, tensors, of_any_dtype=of_any_dtype):
            continue
        # Most checkpoints have no such tensor.
        from zerotools.ops.quantised.bitsandbytes_weights import bits_and_bytes
        from zerotools.ops.quantised.find_fp8_fp4_int8 import eight_bits, four_bits

        found = (
            bits_and_bytes(key, tensor, tensors, checkpoint.root)
            or four_bits(key, tensor, tensors)
            or eight_bits(key, tensor, tensors, blocks)
        )
        if isinstance(found, QuantisedWeight):
            weights[found.key] = found
        elif isinstance(found, UnprovedScales):
            unproved.append(found)
        elif found is not None:
            faults.append((found, key.name))
    used = {part for each in weights.values() for part in (*each.parts, *each.extra_keys)}
    blamed = {name for _, name in faults} | {each.parts[0].name for each in unproved}
    rest = {key: t for key, t in tensors.items() if key not in used}
    if weights or config is not None:
        activations = tuple(key for key in rest if key.name.endswith(_ACTIVATIONS))
    else:
        activations = ()
    left = {key: t for key, t in rest.items() if key not in activations}
    faults += [each for each in _left_over(left, config, tensors, blamed) if each[1] not in blamed]
    faults += _taken_names(weights, tensors)
    unknown = None if config is None else _unknown(config)
    if unknown is None and unproved:
        more = f" (and {len(unproved) - 1} more)" if len(unproved) > 1 else ""
        fault = config_fault(checkpoint.own_config)
        missing = unproved[0].missing if fault is None else fault
        unknown = f"{checkpoint.origin.path}: {unproved[0].fits}, and {missing}{more}"
    is_plain = not (weights or faults or unproved)
    if is_plain and config is not None and not _lies_in(checkpoint, config.path):
        config = unknown = None  # the run began quantised, its weights are not
    is_only_declared = is_plain and config is not None and unknown is None
    if is_only_declared and config is not None:
        types = ", ".join(sorted({tensor.dtype.name for tensor in tensors.values()}))
        faults.append((
            f"{config.said}, but no tensor next to it is quantised (their types: "
f"{types or 'none'}): remove quantization_config from it if the weights are plain",
            None,
        ))  # fmt: skip
    elif config is not None and unknown is None:
        faults += _other_kinds(config, weights)
    place = str(checkpoint.origin.path)
    return Quantisation(
        weights,
        activations,
        config,
        tuple(faults),
        unknown,
        is_only_declared,
        place,
        tuple(unproved),
    )


def _lies_in(checkpoint: Checkpoint, path: Path) -> bool:
    return path.absolute().is_relative_to(checkpoint.root.absolute())


def _may_be_payload(
    key: Key, tensor: Tensor, tensors: Collection[Key], *, of_any_dtype: bool
) -> bool:
    """Return whether a tensor may be the payload of a quantised weight. With `of_any_dtype`, any
    weight may be: an nf4 weight of bitsandbytes may be stored as bfloat16.

    An integer tensor needs the name of a payload, or scales. Other integers are counts or tables.
    """
    if tensor.dtype in _EIGHT or key.name.endswith(_INTEGERS.get(tensor.dtype, ())):
        return True
    if of_any_dtype and (tensor.dtype in _INTEGERS or key.name.endswith(".weight")):
        return True
    named = (Key(key.name + end, key.role) for end in ("_scale_inv", "_scale"))
    return tensor.dtype in _INTEGERS and any(scales in tensors for scales in named)


def _left_over(
    left: Mapping[Key, Tensor],
    config: QuantisationConfig | None,
    tensors: Collection[Key],
    blamed: Collection[str | None],
) -> Iterator[tuple[str, str | None]]:
    """Yield a sentence and a tensor name for each payload without scales, and for each scale
    without a payload."""
    for key, tensor in left.items():
        is_payload = key.name.endswith(_INTEGERS.get(tensor.dtype, ()))
        if tensor.dtype in _EIGHT or is_payload:
            if not key.name.endswith(_SCALES):
                yield (
                    f"{key.name} is {tensor.dtype} and has no scales that zerotools knows: "
                    f"neither {key.name}_scale_inv nor {key.name}_scale",
                    key.name,
                )
        elif key.name.endswith(_SCALES):
            stem = next(key.name.removesuffix(s) for s in _SCALES if key.name.endswith(s))
            held = Key(f"{stem}.weight", key.role)
            if held.name not in blamed and (config is not None or held in tensors):
                what = f"{left[held].dtype}" if held in left else "missing"
                yield (
                    f"{key.name} holds scales of {held.name}, which is {what}",
                    key.name,
                )


def _taken_names(
    weights: Mapping[Key, QuantisedWeight], tensors: Collection[Key]
) -> Iterator[tuple[str, str | None]]:
    for key, each in weights.items():
        if key in tensors and key not in each.parts:
            yield (
                f"{each.parts[0].name} and {key.name} are one weight, but both exist",
                key.name,
            )


def _unknown(config: QuantisationConfig) -> str | None:
    """Return a sentence about a setting of the config that zerotools does not support. Return None
    if it supports all settings.
    """
    known = ", ".join(KINDS)
    if config.method is None and not config.settings.get("config_groups"):
        return f"{config.path}: quantization_config names no quant_method; zerotools reads {known}"
    method = config.method or "compressed-tensors"
    if method not in KINDS:
        return f"{config.said}, which zerotools does not read; it reads {known}"
    if method == "compressed-tensors":
        given = config.settings.get("format")
        if given not in FORMATS and given is not None:
            return (
                f"{config.path} has the format {given!r:.60} of compressed-tensors, which "
                f"zerotools does not read; it reads {', '.join(sorted(FORMATS))}"
            )
    if config.settings.get("transform_config"):
        return (
            f"{config.path} has a transform_config for rotated weights, which zerotools does not "
            "rotate back"
        )
    if method == "modelopt" and config.settings.get("quant_algo") != "NVFP4":
        algorithm = config.settings.get("quant_algo")
        return f"{config.path} has quant_algo {algorithm!r:.60}, but zerotools reads only NVFP4"
    if config.settings.get("expert_dtype", "fp8") != "fp8":
        return f"{config.path} has expert_dtype fp4, which zerotools does not read"
    return None


def _other_kinds(
    config: QuantisationConfig, weights: Mapping[Key, QuantisedWeight]
) -> Iterator[tuple[str, str | None]]:
    method = config.method or "compressed-tensors"
    for key, each in weights.items():
        if not each.kind.startswith(KINDS[method]):
            yield f"{config.said}, but {key.name} is {each.kind}", key.name
            return
