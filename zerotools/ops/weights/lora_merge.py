"""Merge the adapters of a LoRA run into its weights, in fp32: W + scale · B·A. DoRA, trainable
tokens and adapters of experts are merged too.

Merged weights are in no file of the source. So they are computed block by block and written to
files next to the output, which the export then reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from zerotools import formats
from zerotools.core import dtypes
from zerotools.core.adapter_tensor_names import (
    DEFAULT,
    PREFIX,
    SAVED_WHOLE,
    A,
    AdapterTensor,
    B,
    adapter_names,
    adapter_of,
    adapter_tensors,
    is_adapter_checkpoint,
    plain_name,
)
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Tensor
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadFile, BadRequest, ZerotoolsError
from zerotools.formats import FORMATS, FormatTable, format_of, training_of
from zerotools.io.files.open_source import RemotePath
from zerotools.io.huggingface.config_json import config_of_model, ties_embeddings
from zerotools.io.huggingface.model_sidecars import CONFIG, find_nearest
from zerotools.io.output.staging import Staging, partial_of
from zerotools.maps.hub_tensor_names import has_transposed_experts, names_of_model
from zerotools.maps.map_file import HUB
from zerotools.maps.transformers_names import MEMORY, PrefixMap, prefix_map_of
from zerotools.ops.weights.adapted_model import (
    AdaptedModel,
    WrongBaseModel,
    adapted_weights,
    plain_weights,
)
from zerotools.ops.weights.adapter_arithmetic import Product, block_reader, blocks_of, merged_change
from zerotools.ops.weights.adapter_config import (
    ADAPTER_CONFIG,
    BASE_NAME,
    check_config,
    choose_config,
    refuse_changed_base,
)
from zerotools.ops.weights.add_base_model_weights import (
    check_bytes,
    joined_files,
    moved_below,
    read_base,
    with_base,
    with_given_base,
)
from zerotools.ops.weights.convert_adapter_layout import mapped_config, saved_tensors
from zerotools.ops.weights.convert_layout import MapRequest, mapped_checkpoint
from zerotools.ops.weights.match_names_to_layout import shapes_of
from zerotools.ops.weights.merged_config import (
    HEADS,
    is_token_embedding,
    model_config,
    with_tied_head,
)
from zerotools.ops.weights.select_and_rename import MASTERS, rename_tensors, weights_from
from zerotools.ops.weights.tied_weights import head_differs
from zerotools.runs.training_record import JobRecord, LoraRecord

_MAX_NAMED = 3
_FUSED = "hf-fused"
_WITH_HEAD = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
_TO_HUB = " --map-to hf --config-dir MODEL_DIR"


@dataclass(frozen=True)
class AdapterRequest:
    """The user's options for the adapter of a LoRA run.

    `base` is its base model, `config` its config, and `name` its name if there are several.
    `weights` is the value of `--weights-from`. `model_config` is the config.json of the run.
    """

    base: Path | None = None
    config: Path | None = None
    name: str | None = None
    weights: str = MASTERS
    model_config: Path | None = None

    def options(self) -> list[str]:
        """Return the given options that apply only to a run with an adapter."""
        given = {"--base": self.base, "--adapter-config": self.config, "--adapter-name": self.name}
        return [option for option, value in given.items() if value is not None]


@dataclass(frozen=True)
class MergedAdapters:
    """The result of a merge.

    Attributes:
        checkpoint: the model, with merged weights in place of weights and adapters.
        sums: returns a context that computes the merged weights. While it is open, their files are
            in the directory `scratch`.
        bytes: the size of these files.
        base: the name of the base model in the adapter's config.
        dtype: the widest dtype of the weights that adapters are added to (fp32 if they mix float16
            and bfloat16); None if there are no such weights.
    """

    checkpoint: Checkpoint
    sums: Callable[[], AbstractContextManager[None]]
    bytes: int
    scratch: Path
    notes: tuple[str, ...]
    base: str | None = None
    dtype: DType | None = None


def merge_adapters(
    checkpoint: Checkpoint,
    scratch: Path,
    table: FormatTable = FORMATS,
    request: AdapterRequest | None = None,
) -> MergedAdapters | None:
    """Prepare the merge for a run that trained LoRA adapters, which the names of its tensors show.
    Return None for other runs.

    The scale of adapters is in the record of the job, or in adapter_config.json. The merged weights
    will be written to a directory next to `scratch`, after files of a killed run are removed there.

    Raises:
        BadFile: one of two matrices of an adapter is missing, or a job's checkpoint lacks the
            weight of an adapter.
        BadRequest: the base model or the config is missing, does not fit, or was given although it
            is not needed.
        Unsupported: zerotools cannot merge this kind of adapter.
    """
    request = request or AdapterRequest()
    record = format_of(checkpoint, table).job_record(checkpoint)
    if record is not None and record.lora is not None:
        return _of_job(checkpoint, record, record.lora, scratch, request)
    held = weights_from(checkpoint, request.weights)
    names = adapter_names(held.tensors)
    if not names:
        if useless := request.options():
            raise BadRequest(
                f"{checkpoint.origin.path} has no adapter (no tensor such as lora_A), but "
                f"{' and '.join(useless)} is for runs with an adapter; leave this option out"
            )
        return None
    tensors = adapter_tensors(held.tensors, request.name, checkpoint.origin.path)
    name = request.name or (DEFAULT if DEFAULT in names else names[0])
    others = [each for each in names if each != name]
    config, notes = choose_config(held, request.config, None, tensors, name, others)
    held, said = with_saved_embeddings(held, tensors, name, table)
    notes += said
    parts = {each.saved: held.tensors[each.key] for each in tensors}
    check_config(config, tensors, parts, checkpoint.origin.path)
    if others:
        notes.append(
            f"merged the adapter {name}, but not {', '.join(others[:_MAX_NAMED])}; --adapter-name "
            "merges another one"
        )
    named = config.get(BASE_NAME)
    named = named if isinstance(named, str) and named else None
    config_json = request.model_config or (config_of_model(named) if named else None)
    own = plain_weights(held, name)
    named_weights = [f"{each.module}.weight" for each in tensors]
    copies = _not_trained(held, config).difference(HEADS if head_differs(own) else ())
    own = with_tied_head(own, config_json, copies, named_weights)
    of_run = request.model_config or own.model_sidecars.get(CONFIG) or config_json
    request = replace(request, model_config=of_run)
    model = _model_of(held, own, tensors, config, request, table)
    merged = _laid_out(checkpoint, model, scratch, request)
    if model.is_mapped:
        merged = replace(merged, checkpoint=_as_on_hub(merged.checkpoint))
    return replace(merged, notes=(*notes, *merged.notes), base=named)


def _as_on_hub(merged: Checkpoint) -> Checkpoint:
    weights = {k: t for k, t in merged.tensors.items() if k.role in ("param", "buffer")}
    return mapped_checkpoint(replace(merged, tensors=weights), MapRequest(to=HUB)).checkpoint


def _model_of(
    held: Checkpoint,
    own: Checkpoint,
    tensors: list[AdapterTensor],
    config: Mapping[str, Any],
    request: AdapterRequest,
    table: FormatTable,
) -> AdaptedModel:
    """Return the model of an adapter run, with the base weights of the run or of `request.base`."""
    path, base = held.origin.path, request.base
    try:
        if not _holds_layers(own):
            raise WrongBaseModel("it has no weights of the model's layers")
        model = adapted_weights(own, held, tensors, config, _experts_of(request.model_config))
    except WrongBaseModel as error:
        if base is None:
            mapped_to = _TO_HUB if format_of(held, table).needs_map else ""
            raise BadRequest(_without_base(path, config, str(error), mapped_to)) from None
    else:
        if base is not None:
            raise BadRequest(
                f"{path} already holds the base model of its adapter, and zerotools merges the "
                "adapter into that model; leave --base out"
            )
        return model
    assert base is not None
    refuse_changed_base(config, path)
    given = read_base(base, table)
    if format_of(held, table).needs_map and not format_of(given, table).needs_map:
        held, tensors, config = _adapter_of_hub(held, tensors, config, given, table)
        own = plain_weights(held, DEFAULT)
    try:
        return on_base(held, own, tensors, config, given)
    except (
        WrongBaseModel
    ):  # transformers holds some models otherwise in memory than the Hub has them
        fused = _with_fused_experts(given)
        if fused is None:
            raise
    return replace(on_base(held, own, tensors, config, fused), is_mapped=True)


def _adapter_of_hub(
    held: Checkpoint,
    tensors: Sequence[AdapterTensor],
    config: Mapping[str, Any],
    base: Checkpoint,
    table: FormatTable,
) -> tuple[Checkpoint, list[AdapterTensor], Mapping[str, Any]]:
    """Convert an adapter to the names and shapes of a model of the Hugging Face Hub. Return the
    converted checkpoint, its adapter tensors, and the converted config.

    `tensors` are the adapter's tensors in the checkpoint `held`. `config` is its config, and `base`
    its base model.
    """
    beside = {name: each for name, each in base.model_sidecars.items() if name == CONFIG}
    alone = replace(saved_tensors(held, tensors), model_sidecars=beside)
    found = mapped_checkpoint(alone, MapRequest(to=HUB), training_of(held, table))
    if found.adapter is not None:
        config = mapped_config(config, found.adapter, held.origin.path)
    moved = replace(found.checkpoint, model_sidecars=held.model_sidecars)
    return moved, adapter_tensors(moved.tensors, None, held.origin.path), config


def _holds_layers(own: Checkpoint) -> bool:
    """Return whether the checkpoint has weights of the model other than embeddings, output layer
    and biases, which PEFT may save with an adapter."""
    names = (key.name for key in own.tensors if not key.name.endswith(".bias"))
    return any(not (is_token_embedding(name) or name in HEADS) for name in names)


def _with_fused_experts(base: Checkpoint) -> Checkpoint | None:
    try:
        return mapped_checkpoint(base, MapRequest(to=_FUSED)).checkpoint
    except ZerotoolsError:
        return None


def on_base(
    held: Checkpoint,
    own: Checkpoint,
    tensors: Sequence[AdapterTensor],
    config: Mapping[str, Any],
    base: Checkpoint,
) -> AdaptedModel:
    """Add the adapter `tensors` of the checkpoint `held`, and the other weights `own` of the run,
    to the model `base`. The result has the names of `base`.

    Raises:
        WrongBaseModel: `base` is not the base model of the adapter.
    """
    try:
        return _with_names_of(held, own, tensors, config, base)
    except WrongBaseModel as error:
        sizes = model_config(base.model_sidecars.get(CONFIG))
        names, first = prefix_map_of(sizes), error
    try:
        if names is None or not _is_on_hub(base, names):
            raise first
        in_memory = rename_tensors(base, lambda name: names.renamed(name, MEMORY))
        return _with_hub_names(_with_names_of(held, own, tensors, config, in_memory), names)
    except WrongBaseModel as error:
        raise WrongBaseModel(
            f"{base.origin.path} is not the base model of the adapter in {held.origin.path}: "
            f"{error}{_merge_with_peft(sizes, base.origin.path, held.origin.path)}"
        ) from None


def _with_names_of(
    held: Checkpoint,
    own: Checkpoint,
    tensors: Sequence[AdapterTensor],
    config: Mapping[str, Any],
    base: Checkpoint,
) -> AdaptedModel:
    named = {f"{each.module}.weight" for each in tensors}
    named |= {*(key.name for key in own.tensors), *own.aliases}
    if any(map(is_token_embedding, named)) and _has_head(config, base):
        named.add(HEADS[0])
    copies = () if head_differs(base) else HEADS
    base = with_tied_head(base, base.model_sidecars.get(CONFIG), copies, named)
    # PEFT trains a copy of a module in modules_to_save, and ties no other module to the copy.
    weights, halves = with_given_base(
        own,
        held,
        base,
        _not_trained(held, config),
        is_tied=bool(config.get("ensure_weight_tying")),
    )
    return adapted_weights(
        weights, halves, tensors, config, _experts_of(base.model_sidecars.get(CONFIG))
    )


def _has_head(config: Mapping[str, Any], base: Checkpoint) -> bool:
    """Return whether the model of an adapter has an output layer over the vocabulary."""
    task = config.get("task_type")
    classes = model_config(base.model_sidecars.get(CONFIG)).get("architectures")
    name = str(classes[0]) if isinstance(classes, list) and classes else ""
    return task == "CAUSAL_LM" or (task is None and name.endswith(_WITH_HEAD))


def _experts_of(config_json: Path | None) -> Callable[[str], bool | None]:
    """Return a function that takes the name of a module. It returns whether the experts of this
    module are transposed, according to the model's config.json, and None if the module has no
    experts or this is unknown.
    """
    is_transposed = has_transposed_experts(model_config(config_json))
    return lambda module: is_transposed if module.endswith(".experts") else None


def _is_on_hub(base: Checkpoint, names: PrefixMap) -> bool:
    try:
        return names.layout_of([*shapes_of(base), *base.aliases]) == HUB
    except BadRequest:
        return False


def _with_hub_names(model: AdaptedModel, names: PrefixMap) -> AdaptedModel:
    """Return the model with the Hub's names in place of those that transformers uses in memory."""
    changes = {
        Key(names.renamed(key.name, HUB), key.role): each for key, each in model.changes.items()
    }
    weights = rename_tensors(model.weights, lambda name: names.renamed(name, HUB))
    return replace(model, weights=weights, changes=changes)


def _merge_with_peft(config: Mapping[str, Any], base: Path, run: Path) -> str:
    """Return the advice to merge with PEFT, or "" if zerotools knows the names that transformers
    uses in memory.
    """
    named, kind = config.get("architectures"), config.get("model_type")
    name = named[0] if isinstance(named, list) and named else None
    is_known = names_of_model(config, is_tied=ties_embeddings(config)) is not None
    if is_known or not (isinstance(name, str) and name.isidentifier()):
        return ""
    adapter = str(run) if run.is_dir() else "ADAPTER_DIR"
    return (
        f"; if transformers uses other names for models of type {kind} in memory than in files, "
        'let PEFT merge it: python -c "import transformers, peft; model = '
        f"transformers.{name}.from_pretrained({str(base)!r}); "
        "peft.PeftModel.from_pretrained(model, "
        f"{adapter!r}).merge_and_unload().save_pretrained('OUT')\""
    )


def _not_trained(held: Checkpoint, config: Mapping[str, Any]) -> set[str]:
    """Return the names of the weights in the checkpoint that were not trained."""
    whole = tuple(f".{module}." for module in config.get(SAVED_WHOLE) or ())
    names = (key.name for key in held.tensors if f".{SAVED_WHOLE}." not in key.name)
    plain = (plain_name(name) for name in names)
    return {name for name in plain if not any(each in f".{name}" for each in whole)}


def _without_base(path: Path, config: Mapping[str, Any], why: str, mapped_to: str) -> str:
    named = config.get(BASE_NAME)
    base = named if isinstance(named, str) and named else "BASE_DIR"
    said = f" ({ADAPTER_CONFIG} names {base})" if base == named else ""
    return (
        f"{path} holds a LoRA adapter without the weights of its base model{said}: {why}; merge "
        f"both with zerotools consolidate {path} OUT --base {base}, or export only the adapter "
        f"with zerotools consolidate {path} OUT --adapter-only{mapped_to}"
    )


def _of_job(
    checkpoint: Checkpoint,
    record: JobRecord,
    lora: LoraRecord,
    scratch: Path,
    request: AdapterRequest,
) -> MergedAdapters:
    """Return the merged model of a job, with the scale in the job's record."""
    adapters, base = checkpoint, lora.base
    if request.config is not None or request.name is not None:
        raise BadRequest(
            f"{checkpoint.origin.path} is from a job, and its record describes the adapter; leave "
            f"{' and '.join(replace(request, base=None).options())} out"
        )
    if request.base is not None:
        if base is None:
            raise BadRequest(
                "--base is for adapters saved without their base model, but "
                f"{checkpoint.origin.path} holds whole weights; leave it out"
            )
        if isinstance(request.base, RemotePath):  # its files are compared with the job's digests
            raise BadRequest(
                f"--base {request.base}: the base model must be on a disk here; copy it there"
            )
        base = replace(base, path=str(request.base.absolute()))
    if base is not None:
        checkpoint = with_base(adapters, record, base)
    held = weights_from(checkpoint, request.weights)
    path = checkpoint.origin.path
    tensors = adapter_tensors(held.tensors, None, path) if adapter_names(held.tensors) else []
    config = {"r": 1, "lora_alpha": lora.scale}  # the scale itself
    own = plain_weights(held, DEFAULT)
    try:
        model = adapted_weights(own, held, tensors, config, lora.fan_in_fan_out.__contains__)
    except WrongBaseModel as error:
        raise BadFile(str(error)) from None
    merged = _laid_out(checkpoint, model, scratch, request)
    if base is None:
        return merged
    sums = merged.sums

    def checked() -> AbstractContextManager[None]:
        check_bytes(adapters, base)
        return sums()

    return replace(merged, sums=checked)


def _laid_out(
    checkpoint: Checkpoint, model: AdaptedModel, scratch: Path, request: AdapterRequest
) -> MergedAdapters:
    folder = partial_of(scratch)
    tensors = dict(model.weights.tensors)
    files = {**model.weights.files}
    places: dict[Key, Path] = {}
    types = {tensors[key].dtype for key in model.changes}
    for number, key in enumerate(model.changes):
        shape, place = tensors[key].shape, folder / f"{number}.f32"
        tensors[key] = Tensor(dtypes.FLOAT32, shape, (Chunk(Box.whole(shape), str(place), 0),))
        files[str(place)] = tensors[key].nbytes
        places[key] = place
    size = sum(tensors[key].nbytes for key in places)
    merged = replace(
        model.weights,
        tensors=tensors | _beside_weights(checkpoint, request.weights),
        files=files,
        aliases={a: n for a, n in model.weights.aliases.items() if Key(n, "param") in tensors},
    )
    scales = sorted(
        {
            each.scale
            for changes in model.changes.values()
            for each in changes
            if isinstance(each, Product)
        }
    )
    scaled = f"{scales[0]:g}" + (f" to {scales[-1]:g}" if len(scales) > 1 else "") if scales else ""
    note = (
        f"adapters are added to {count_text(len(places), 'weight')}, scaled by {scaled}; until the "
        f"output is written, the merged weights need {size} bytes of disk next to it"
    )
    dtype = max(types, key=lambda each: each.bits, default=None)
    if len({each for each in types if each.bits == 16}) > 1:
        dtype = dtypes.FLOAT32
    sums = partial(_summed, model, places, scratch)
    return MergedAdapters(merged, sums, size, folder, (note,), dtype=dtype)


def _beside_weights(checkpoint: Checkpoint, weights: str) -> dict[Key, Tensor]:
    """Return the tensors that are not weights: 16-bit copies of masters, and optimizer state."""
    held = checkpoint.tensors
    return {
        Key(plain_name(key.name), key.role): tensor
        for key, tensor in held.items()
        if key.role not in ("param", "buffer")
        and adapter_of(key) is None
        and (key.role != "param16" or (weights == MASTERS and Key(key.name, "param") in held))
    }


@contextmanager
def _summed(model: AdaptedModel, places: Mapping[Key, Path], scratch: Path) -> Iterator[None]:
    interruption = None
    with Staging(scratch):
        try:
            for key, place in places.items():
                _add_up(model, key, place)
            yield
        except KeyboardInterrupt as error:  # for which a staging directory would be kept
            interruption = error
    if interruption is not None:
        raise interruption


def _add_up(model: AdaptedModel, key: Key, place: Path) -> None:
    shape = model.weights.tensors[key].shape
    read = block_reader(model.weights, key)
    apply = merged_change(model.changes[key], model.halves, shape, read)
    with place.open("wb") as file:
        for box in blocks_of(shape):
            file.write(apply(box, read(box)).tobytes())


# Take frozen embeddings of an adapter run from PEFT's own file next to it.
#
# If the vocabulary of a model was enlarged before training, PEFT saves the embedding and the output
# layer with the adapter. The Trainer with DeepSpeed saves only trained weights in DeepSpeed's
# files, so these frozen weights are only in `adapter_model.safetensors` of the same checkpoint.

_FILES = ("adapter_model.safetensors", "adapter_model.bin")


def with_saved_embeddings(
    held: Checkpoint, tensors: Sequence[AdapterTensor], name: str, table: FormatTable
) -> tuple[Checkpoint, list[str]]:
    """Return `held` with the embedding and output layer that only PEFT's file has, and a note on
    them.

    `tensors` are the tensors of the adapter `name` in `held`. PEFT's file is next to the nearest
    adapter_config.json. It is used only if `held` has no weights of the base model, and if the file
    has the same adapter: the same LoRA matrices with the same shapes.

    Raises:
        BadFile: PEFT's file is damaged.
    """
    if not is_adapter_checkpoint(held.tensors):
        return held, []
    places = [f"{name}/{ADAPTER_CONFIG}"] if name != DEFAULT else []
    found = (find_nearest(held.root, place) for place in (*places, ADAPTER_CONFIG))
    directory = next((path.parent for path in found if path is not None), None)
    if directory is None:
        return held, []
    file = next((p for each in _FILES if (p := directory / each).is_file()), None)
    if file is None or str(file) in {str(held.root / each) for each in held.files}:
        return held, []
    saved = formats.read(file, table=table)
    shapes = {key.name: tensor.shape for key, tensor in saved.tensors.items()}
    halves = {t.saved: held.tensors[t.key].shape for t in tensors if t.part in (A, B)}
    if any(shapes.get(half) != shape for half, shape in halves.items()):
        return held, []
    own = {plain_name(key.name) for key in held.tensors}
    frozen = {
        Key(key.name, "param"): tensor
        for key, tensor in saved.tensors.items()
        if (plain := key.name.removeprefix(PREFIX)) not in own
        and (is_token_embedding(plain) or plain in HEADS)
    }  # fmt: skip
    if not frozen:
        return held, []
    joined = joined_files(held, saved)
    tensors_of_both = {
        **{key: moved_below(tensor, joined.of_run) for key, tensor in held.tensors.items()},
        **{key: moved_below(tensor, joined.of_other) for key, tensor in frozen.items()},
    }
    whole = replace(
        held,
        root=joined.root,
        tensors=tensors_of_both,
        files=joined.files,
        archives=joined.archives,
        stamps={**held.stamps, **saved.stamps},
    )
    names = " and ".join(plain_name(key.name) for key in frozen)
    return whole, [f"took {names} from {file}, because the checkpoint has only trained weights"]
