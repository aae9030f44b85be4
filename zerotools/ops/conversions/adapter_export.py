"""Export the PEFT adapter of a run without its model, as `save_pretrained` writes it (`consolidate
--adapter-only`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zerotools.core.adapter_tensor_names import (
    DEFAULT,
    PREFIX,
    SAVED_EMBEDDINGS,
    TOKENS,
    AdapterTensor,
    adapter_names,
    adapter_of,
    adapter_tensors,
    full_name,
    is_adapter_checkpoint,
    plain_name,
    saved_whole_twice,
    trained_biases,
)
from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadRequest
from zerotools.core.target import Target
from zerotools.core.training_state import TrainingState
from zerotools.formats import FormatTable, format_of, training_of
from zerotools.formats.format import Format, format_option
from zerotools.formats.torch_optimizers import notes_on_weights
from zerotools.io.huggingface.config_json import config_of_model
from zerotools.io.huggingface.model_sidecars import CONFIG
from zerotools.io.output.files_without_tensors import file_of_bytes
from zerotools.ops.conversions.conversion import Conversion
from zerotools.ops.copied_sidecars import with_sidecars
from zerotools.ops.weights.adapter_config import (
    ADAPTER_CONFIG,
    BASE_NAME,
    check_config,
    choose_config,
)
from zerotools.ops.weights.convert_adapter_layout import MEGATRON, mapped_config, saved_tensors
from zerotools.ops.weights.convert_layout import MappedCheckpoint, MapRequest, mapped_checkpoint
from zerotools.ops.weights.lora_merge import AdapterRequest, with_saved_embeddings
from zerotools.ops.weights.merged_config import HEADS, is_token_embedding, model_config
from zerotools.ops.weights.select_and_rename import describe_output, weights_from

_WEIGHTS = ("param", "param16", "buffer")
_MAX_NAMED = 3


@dataclass(frozen=True)
class AdapterExport:
    """The request to export an adapter without its model.

    Attributes:
        dtype: the dtype of the output; None: each tensor keeps its dtype.
        mapping: the model layout to convert the adapter to; None: the layout stays.
        check_names: refuse an adapter with layers that PEFT cannot load.
    """

    adapter: AdapterRequest
    dtype: DType | None
    mapping: MapRequest | None = None
    check_names: bool = True


def prepare_adapter(
    checkpoint: Checkpoint,
    destination: Path,
    form: Format,
    export: AdapterExport,
    *,
    config_dir: Path | None,
    request: str,
    table: FormatTable,
) -> Conversion:
    """Plan the export of the requested adapter. Its adapter_config.json is the one that the user
    named, else the one of the run.

    Raises:
        BadRequest: the checkpoint has no adapter; the adapter's config is not known or belongs to
            another adapter; or the run trained weights that the adapter does not hold.
        BadFile: one of the two matrices of an adapter is missing.
        Unsupported: zerotools does not export this kind of adapter.
    """
    path, asked, mapping = checkpoint.origin.path, export.adapter, export.mapping
    source = format_of(checkpoint, table)
    if source.needs_map and mapping is None and export.check_names:
        raise BadRequest(
            f"{path} has the layers of {format_option(source)}, which PEFT does not load: add "
            "--map-to hf --config-dir MODEL_DIR (the directory with the config.json of the "
            "model), or --no-check-names to export it unchanged"
        )
    record = source.job_record(checkpoint)
    lora = None if record is None else record.lora
    held = weights_from(checkpoint, asked.weights)
    tensors = adapter_tensors(held.tensors, asked.name, path)
    around, _ = with_sidecars(checkpoint, config_dir, {})
    names = adapter_names(held.tensors)
    name = asked.name or (DEFAULT if DEFAULT in names else names[0])
    tensors += saved_whole_twice(held.aliases, name)
    others = [each for each in names if each != name]
    tree, notes = choose_config(around, asked.config, lora, tensors, name, others)
    held, said = with_saved_embeddings(held, tensors, name, table)
    notes += said
    if others:
        notes.append(
            f"this exports the adapter {name}, one of {len(names)}; --adapter-name exports "
            f"another one: {', '.join(others[:_MAX_NAMED])}"
        )
    which = tree.get("bias") or "none"
    tensors += trained_biases(held.tensors, which, {each.module for each in tensors})
    embeddings, more = saved_embeddings(held, tensors, tree, name, asked.base)
    tensors, notes = [*own_tokens(tensors, tree), *embeddings], [*notes, *more]
    tensors += _saved_beside(held, tensors)
    chosen = saved_tensors(held, tensors)
    check_config(tree, tensors, {key.name: each for key, each in chosen.tensors.items()}, path)
    if mapping is not None:
        found = _in_layout(chosen, around, mapping, training_of(checkpoint, table))
        chosen, notes = found.checkpoint, [*notes, *found.notes]
        if found.adapter is not None:
            tree = mapped_config(tree, found.adapter, path)
    # Who names one of several means that one alone.
    _refuse_lost(checkpoint, tensors, others if asked.name is not None else ())
    described = _in_type(replace(chosen, model_sidecars={}), export.dtype)
    target = form.export_adapter(described, destination)
    return Conversion(
        chosen,
        _with_config(target, tree),
        (*notes_on_weights(checkpoint.origin.notes), *notes),
        request,
        table=table,
    )


def _saved_beside(held: Checkpoint, tensors: Collection[AdapterTensor]) -> Iterator[AdapterTensor]:
    """Yield the tensors that an adapter checkpoint `held` has in addition to the adapter: fully
    trained modules, embeddings and biases. Yield nothing if `held` contains the whole model."""
    if not is_adapter_checkpoint(held.tensors):
        return
    taken = {each.key for each in tensors} | {Key(each.saved, "param") for each in tensors}
    for key in held.tensors:
        if key not in taken and adapter_of(key) is None and key.name.startswith(PREFIX):
            yield AdapterTensor(key, plain_name(key.name), "beside", key.name, key.name)


def _in_layout(
    chosen: Checkpoint, around: Checkpoint, mapping: MapRequest, training: TrainingState
) -> MappedCheckpoint:
    """Return the adapter `chosen` in the requested layout. `around` has the model's config.json."""
    path = chosen.origin.path
    if mapping.to == MEGATRON:
        raise BadRequest(
            f"Megatron loads an adapter from a torch_dist checkpoint, and not as PEFT saves it: "
            f"write one with zerotools convert {path} OUT --to megatron --map-to megatron"
        )
    beside = {name: each for name, each in around.model_sidecars.items() if name == CONFIG}
    return mapped_checkpoint(replace(chosen, model_sidecars=beside), mapping, training)


def _in_type(chosen: Checkpoint, dtype: DType | None) -> Checkpoint:
    def type_of(_: Key, tensor: Tensor) -> DType:
        is_cast = dtype is not None and tensor.dtype.is_float and tensor.dtype.bits >= 16
        return dtype if is_cast and dtype is not None else tensor.dtype

    return describe_output(chosen, type_of)


def _with_config(target: Target, tree: Mapping[str, Any]) -> Target:
    text = json.dumps({**tree, "inference_mode": True}, indent=2, sort_keys=True) + "\n"
    return replace(target, files={**target.files, ADAPTER_CONFIG: file_of_bytes(text.encode())})


def _refuse_lost(
    checkpoint: Checkpoint, tensors: list[AdapterTensor], others: Collection[str]
) -> None:
    """Raise an error if the export would lack tensors that were trained, which are those with
    optimizer state. `others` are adapters that are left out on purpose."""
    kept = {each.key.name for each in tensors}
    kept |= {key.name for key in checkpoint.tensors if adapter_of(key) in others}
    tied = {alias for alias, name in checkpoint.aliases.items() if name in kept}
    tied |= {name for alias, name in checkpoint.aliases.items() if alias in kept}
    trained = dict.fromkeys(key.name for key in checkpoint.tensors if key.role not in _WEIGHTS)
    weights = {key.name for key in checkpoint.tensors if key.role in _WEIGHTS}
    left = weights - kept - tied
    lost = [name for name in trained if name in left]
    if lost:
        more = f" and {len(lost) - _MAX_NAMED} more" if len(lost) > _MAX_NAMED else ""
        raise BadRequest(
            f"{checkpoint.origin.path} also trained {', '.join(lost[:_MAX_NAMED])}{more}, which "
            "no adapter would hold; export the whole model without --adapter-only, or choose the "
            "adapter with --adapter-name"
        )


def saved_embeddings(
    held: Checkpoint,
    tensors: Sequence[AdapterTensor],
    config: Mapping[str, Any],
    name: str,
    base: Path | None,
) -> tuple[list[AdapterTensor], list[str]]:
    """Return the embedding tensors that PEFT saves with the adapter `name` under its setting
    `save_embedding_layers = "auto"`, and notes on this choice.

    PEFT saves embeddings that have an adapter. It also saves them if the size of the vocabulary
    differs from that of the base model. `base` is the directory of the base model; None: the one
    that the config names.
    """
    adapted = {each.module for each in tensors}
    layers = _layers(held)
    is_targeted = _is_targeted(config.get("target_modules"), adapted)
    if is_targeted and config.get("trainable_token_indices") is None:
        wrapped = [f"{layer}.base_layer" for layer in layers if plain_name(layer) in adapted]
        return list(_below(held, wrapped, name, tensors)), []
    rows = next((tensor.shape[0] for key, tensor in held.tensors.items()
                 if is_token_embedding(plain_name(key.name)) and len(tensor.shape) == 2
                 and adapter_of(key) is None), None)  # fmt: skip
    if rows is None or is_adapter_checkpoint(held.tensors):  # then PEFT itself has saved it
        return [], []
    known = _vocabulary(config, base)
    if known is None:
        where = config.get(BASE_NAME) or "the base model"
        return [], [
            f"{where} is not on this machine, so it is not known whether the vocabulary of "
            f"{rows} rows has grown and must be saved with the adapter; pass --base DIR"
        ]
    if known == rows:
        return [], []
    found = list(_below(held, layers, name, tensors))
    return found, [(
        f"saved with the adapter: {' and '.join(plain_name(each) for each in layers)}, because "
        f"the vocabulary has {rows} rows, but the base model has {known}"
    )]  # fmt: skip


def _layers(held: Checkpoint) -> list[str]:
    """Return the names in PEFT's model of the input embedding and the output layer."""
    found: dict[str, None] = {}
    for key in held.tensors:
        plain = plain_name(key.name)
        if is_token_embedding(plain) or plain in HEADS:
            found[PREFIX + plain.removesuffix(".weight")] = None
    for alias in held.aliases:
        if plain_name(alias) in HEADS:
            found[PREFIX + plain_name(alias).removesuffix(".weight")] = None
    return list(found)


def _is_targeted(modules: object, adapted: set[str]) -> bool:
    if isinstance(modules, str):
        leaves = {module.rpartition(".")[2] for module in adapted}
        return not leaves.isdisjoint(SAVED_EMBEDDINGS)
    return isinstance(modules, list) and any(each in modules for each in SAVED_EMBEDDINGS)


def _vocabulary(config: Mapping[str, Any], base: Path | None) -> int | None:
    """Return the number of rows in the base model's vocabulary; None if unknown."""
    named = config.get(BASE_NAME)
    path = None
    if base is not None:
        path = base / CONFIG
    elif isinstance(named, str) and named:
        path = config_of_model(named)
    tree = model_config(path)
    for inner in (tree, tree.get("text_config")):
        size = inner.get("vocab_size") if isinstance(inner, dict) else None
        if type(size) is int:
            return size
    return None


def _below(
    held: Checkpoint, modules: Sequence[str], name: str, tensors: Sequence[AdapterTensor]
) -> Iterator[AdapterTensor]:
    """Yield every tensor of `modules`, with the name under which PEFT saves it."""
    known = {each.saved for each in tensors}
    keys = {full_name(key.name): key for key in held.tensors}
    for alias, holder in held.aliases.items():
        if Key(holder, "param") in held.tensors:
            keys.setdefault(full_name(alias), Key(holder, "param"))
    for full, key in keys.items():
        inside = any(full.startswith(f"{module}.") for module in modules)
        saved = re.sub(rf"\.{re.escape(name)}(?=\.|$)", "", full)
        if inside and saved not in known and adapter_of(key) in (None, name):
            yield AdapterTensor(key, plain_name(full).rpartition(".")[0], "embedding", saved, full)


def own_tokens(tensors: Sequence[AdapterTensor], config: Mapping[str, Any]) -> list[AdapterTensor]:
    """Return the tensors without duplicate trained embedding rows. An output layer that is tied to
    the embedding has the same rows, and PEFT saves them once, with the embedding."""
    tokens = {each.module for each in tensors if each.part == TOKENS}
    named = config.get("trainable_token_indices")
    named = tuple(named) if isinstance(named, dict) else ()
    shared = {
        module
        for module in tokens
        if len(tokens) > 1
        and f"{module}.weight" in HEADS
        and not any(f".{module}".endswith(f".{each}") for each in named)
    }
    return [each for each in tensors if each.part != TOKENS or each.module not in shared]
