"""A checkpoint of quantised weights with plain ones in their place, which scales are part of."""

from __future__ import annotations

from dataclasses import replace

from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.counts import counted
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.core.target import Target
from zerotools.io.huggingface.config_json import adapted_config, weights_dtype
from zerotools.io.huggingface.model_sidecars import CONFIG
from zerotools.io.output.plain_files import literal
from zerotools.ops.quantised.quantisation import Quantisation
from zerotools.ops.quantised.quantisation_config import config_text
from zerotools.ops.quantised.recognise import recognise


def dequantised(checkpoint: Checkpoint, found: Quantisation) -> Checkpoint:
    """The same tensors, with each quantised weight as one that is computed of its parts.

    Raises:
        BadFile: scales are missing or have another shape.
        Unsupported: the config names a method that zerotools does not read.
    """
    if (error := found.error()) is not None:
        raise error
    whole = {each.parts[0]: key for key, each in found.weights.items()}
    gone = {part for each in found.weights.values() for part in (*each.parts, *each.beside)}
    gone |= set(found.activations)
    tensors: dict[Key, Tensor] = {}
    for key, tensor in checkpoint.tensors.items():
        if key in whole:
            tensors[whole[key]] = found.weights[whole[key]].tensor
        elif key not in gone:
            tensors[key] = tensor
    return replace(checkpoint, tensors=tensors)


def dequantised_notes(found: Quantisation) -> list[str]:
    """What to tell the user."""
    if not found.weights:
        return []
    said = [f"dequantised: {found.words()}"]
    if found.activations:
        said.append(
            f"{counted(len(found.activations), 'scale')} of activations left out: plain weights "
            "have no use for them"
        )
    return said


def kept_note(found: Quantisation) -> str:
    """Where nothing was asked of quantised weights."""
    if (error := found.error()) is not None:
        return f"every tensor keeps its type, because weights seem to be quantised: {error}"
    return (
        f"the weights stay quantised ({found.words()}), and every tensor keeps its type; "
        "zerotools consolidate --dtype bf16 makes them plain"
    )


def with_plain_config(target: Target, source: Checkpoint) -> Target:
    """`target` with a config.json that says nothing of quantised weights, and says so."""
    return with_config(target, source, None, f"{CONFIG} is written without quantization_config")


def with_config(
    target: Target, source: Checkpoint, settings: dict[str, object] | None, note: str
) -> Target:
    """`target` with a config.json that has `settings` as its quantization_config."""
    path = source.model_sidecars.get(CONFIG)
    if path is None or CONFIG not in target.files:
        return target
    text = adapted_config(path, weights_dtype(target.checkpoint.tensors.values()))
    text = config_text(path, settings, text)
    if text is None:
        return target
    files = {**target.files, CONFIG: literal(text)}
    sizes = {name: plan.size for name, plan in files.items()}
    checkpoint = replace(target.checkpoint, files=sizes)
    return replace(target, files=files, checkpoint=checkpoint, notes=(*target.notes, note))


def refuse_quantised(checkpoint: Checkpoint) -> None:
    """
    Raises:
        Unsupported: weights are quantised, for a command that does not know them.
    """
    found = recognise(checkpoint)
    if found.weights or (found.faults and not found.is_denied):
        raise Unsupported(
            f"{checkpoint.origin.path} is quantised ({found.words() or found.error()}), which this "
            "command does not read; make it plain first, by zerotools consolidate --dtype bf16"
        )


def refuse_split(source: Checkpoint, kept: Checkpoint, found: Quantisation) -> None:
    """Refuse to leave out the scales of a payload that stays as it is, or the other way round.
    `kept` has the tensors that are written, under any names.

    Raises:
        BadRequest: names both.
    """
    written = set(map(id, kept.tensors.values()))
    for each in found.weights.values():
        here = [part for part in each.parts if id(source.tensors[part]) in written]
        gone = [part for part in each.parts if id(source.tensors[part]) not in written]
        if here and gone:
            raise BadRequest(
                f"{here[0].name} would be written without {gone[0].name}, and they are one weight "
                f"of {source.origin.path}; select both, or pass --dtype bf16"
            )
