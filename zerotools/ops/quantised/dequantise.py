"""Replace the quantised weights of a checkpoint by plain weights, computed from payloads and
scales.
"""

from __future__ import annotations

from dataclasses import replace

from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.core.target import FilePlan, Target
from zerotools.io.files.regular_files import read_user_file
from zerotools.io.huggingface.config_json import adapted_config, dtype_for_config
from zerotools.io.huggingface.model_sidecars import CONFIG
from zerotools.io.output.files_without_tensors import file_of_bytes
from zerotools.ops.quantised.find_quantised import find_quantised
from zerotools.ops.quantised.quantisation_config import (
    config_text,
    is_quantised_config,
    quantisation_config,
)
from zerotools.ops.quantised.quantised_weights import Quantisation


def dequantise_checkpoint(checkpoint: Checkpoint, found: Quantisation) -> Checkpoint:
    """Return the checkpoint with a plain weight, computed from payload and scales, in place of each
    quantised one.

    Raises:
        BadFile: scales are missing or have another shape.
        Unsupported: the config names a method that zerotools does not support.
    """
    if (error := found.error()) is not None:
        raise error
    whole = {each.parts[0]: key for key, each in found.weights.items()}
    gone = {part for each in found.weights.values() for part in (*each.parts, *each.extra_keys)}
    gone |= set(found.activations)
    tensors: dict[Key, Tensor] = {}
    for key, tensor in checkpoint.tensors.items():
        if key in whole:
            tensors[whole[key]] = found.weights[whole[key]].tensor
        elif key not in gone:
            tensors[key] = tensor
    return replace(checkpoint, tensors=tensors)


def with_values_of(
    checkpoint: Checkpoint, found: Quantisation, key: Key, dtype: DType
) -> Checkpoint:
    """Return the checkpoint with the tensor `key` dequantised, if it is the payload of a quantised
    weight. `dtype` is the dtype that the tensor will be cast to.

    Raises:
        Unsupported: the tensor is a payload or a scale that cannot be dequantised, and a cast to
            `dtype` would make it meaningless.
        BadFile: its scales are missing or have another shape.
    """
    each = found.weights.get(key)
    if each is not None and each.parts[0] == key and found.unknown is None:
        return replace(checkpoint, tensors={**checkpoint.tensors, key: each.tensor})
    refuse_bare_cast(checkpoint, found, key, dtype)
    return checkpoint


def refuse_bare_cast(checkpoint: Checkpoint, found: Quantisation, key: Key, dtype: DType) -> None:
    """Refuse to cast the tensor `key` to `dtype` if it is a payload or a scale. A cast of only one
    of the two would make the weight meaningless.

    Raises:
        BadFile, Unsupported: the cast is refused. The message has the fault of the quantised
            weights, if they have one.
    """
    own = checkpoint.tensors[key]
    names = {part.name for parts in found.together for part in parts}
    names |= {name for _, name in found.faults if name is not None}
    if own.dtype == dtype or not (
        key.name in names or (own.dtype.is_float and own.dtype.bits < 16)
    ):
        return
    if (error := found.error()) is not None:
        raise error
    raise Unsupported(
        f"{checkpoint.origin.path}: {key.name} is {own.dtype} and would become {dtype} without "
        "its scales; make the weights plain first with zerotools consolidate --dtype bf16"
    )


def dequantised_notes(found: Quantisation) -> list[str]:
    """Return notes for the user on dequantised weights; empty if no weight was dequantised."""
    if not found.weights:
        return []
    said = [f"dequantised: {found.words()}"]
    if found.activations:
        said.append(
            f"{count_text(len(found.activations), 'scale')} of activations left out, because "
            "plain weights do not need them"
        )
    return said


def kept_note(found: Quantisation) -> str:
    """Return the note for the user that weights stay quantised, because no dtype was requested."""
    if (error := found.error()) is not None:
        return f"every tensor keeps its type, because weights seem to be quantised: {error}"
    return (
        f"the weights stay quantised ({found.words()}), and every tensor keeps its type; "
        "zerotools consolidate --dtype bf16 makes them plain"
    )


def with_true_config(
    target: Target, source: Checkpoint, found: Quantisation, *, is_plain: bool = False
) -> Target:
    """Return `target` with the quantization_config of `found` in its config.json, or with
    `is_plain` without one. A note says so if config.json changes."""
    said = quantisation_config(source.model_sidecars.get(CONFIG))
    if is_plain or not found.is_there or found.is_only_declared:
        if said is None:
            return target
        return with_config(target, source, None, f"{CONFIG} is written without quantization_config")
    own = found.config
    if own is None or (said is not None and said.settings == own.settings):
        return target
    note = f"{CONFIG} is written with the quantization_config of {own.path}: it fits the weights"
    return with_config(target, source, dict(own.settings), note)


def refuse_unreadable(target: Target, source: Checkpoint, found: Quantisation) -> None:
    """Refuse to write quantised weights with a config.json that does not describe the quantisation,
    because programs would use the payloads as values.

    Raises:
        Unsupported: config.json does not describe the quantisation.
    """
    if found.is_only_declared or not (found.weights or found.unproved):
        return
    plan, path = target.files.get(CONFIG), source.origin.path
    if plan is None and not found.unproved:  # if no config is written, a warning reports it
        return
    if plan is not None and is_quantised_config(_text(plan)):
        return
    why = f"its {CONFIG} has no quantization_config" if plan is not None else f"it has no {CONFIG}"
    if found.unproved:
        raise Unsupported(f"{found.unknown}; {why}, so no program could read the output")
    raise Unsupported(
        f"{path} is quantised ({found.words()}) and {why}, so programs would read its packed data "
        f"as values: put the {CONFIG} of this model next to its weights, or make them plain with "
        f"zerotools consolidate {path} OUT --dtype bf16"
    )


def _text(plan: FilePlan) -> bytes:
    if plan.literals:
        return plan.literals[0].data
    return b"".join(read_user_file(part.source) for part in plan.carried)


def with_config(
    target: Target, source: Checkpoint, settings: dict[str, object] | None, note: str
) -> Target:
    """Return `target` with `settings` as the quantization_config of its config.json, and with the
    note `note`. If `settings` is None, config.json gets no quantization_config."""
    path = source.model_sidecars.get(CONFIG)
    if path is None or CONFIG not in target.files:
        return target
    text = adapted_config(path, dtype_for_config(target.checkpoint.tensors.values()))
    text = config_text(path, settings, text)
    if text is None:
        return target
    files = {**target.files, CONFIG: file_of_bytes(text)}
    sizes = {name: plan.size for name, plan in files.items()}
    checkpoint = replace(target.checkpoint, files=sizes)
    return replace(target, files=files, checkpoint=checkpoint, notes=(*target.notes, note))


def refuse_quantised(checkpoint: Checkpoint) -> Quantisation:
    """Refuse a checkpoint with quantised weights. For other checkpoints, return the result of the
    search for such weights.

    Raises:
        Unsupported: weights are quantised, and the command does not support that.
    """
    found = find_quantised(checkpoint)
    if found.weights or found.unproved or (found.faults and not found.is_only_declared):
        raise Unsupported(
            f"{checkpoint.origin.path} is quantised ({found.words() or found.error()}), which "
            "this command does not read; make it plain first with zerotools consolidate --dtype "
            "bf16"
        )
    return found


def refuse_split(source: Checkpoint, kept: Checkpoint, found: Quantisation) -> None:
    """Refuse to write a payload without its scales, or scales without their payload. `kept` has the
    tensors that are written, perhaps under other names than in `source`.

    Raises:
        BadRequest: this would happen. The message names both tensors.
    """
    written = set(map(id, kept.tensors.values()))
    for parts in found.together:
        here = [part for part in parts if id(source.tensors[part]) in written]
        gone = [part for part in parts if id(source.tensors[part]) not in written]
        if here and gone:
            raise BadRequest(
                f"{here[0].name} would be written without {gone[0].name}, but they are one weight "
                f"of {source.origin.path}; select both, or pass --dtype bf16"
            )
