"""Lay out a checkpoint of any format as a torch_dist checkpoint, which Megatron-Core 0.15 and 0.16
load.

    OUT/latest_checkpointed_iteration.txt      the iteration, or `release` for weights alone
    OUT/iter_0000100/ or OUT/release/          .metadata, __0_N.distcp, common.pt, metadata.json

The output is independent of the degrees of parallelism: each rank that loads it requests its parts
of whole tensors. The optimizer state has the form `fully_reshardable`: masters and moments have the
shapes of their weights.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from zerotools.core.checkpoint import Checkpoint, Key, Origin, Tensor
from zerotools.core.errors import BadFile, BadRequest
from zerotools.core.target import Dropped, FilePlan, Target
from zerotools.core.training_state import TrainingState
from zerotools.formats.megatron.file_names import COMMON, CONFIG, TRACKER
from zerotools.formats.megatron.training_state import EMBEDDING, FORMAT, OUTPUT
from zerotools.formats.megatron.writing.model_arguments import (
    PARALLEL,
    model_arguments,
    unset_options,
)
from zerotools.formats.megatron.writing.one_tensor_per_layer import (
    NormNames,
    SingleTensors,
    norm_names,
    single_tensors,
)
from zerotools.formats.megatron.writing.resumable_optimizer import (
    MOMENTS,
    DroppedOptimizer,
    WrittenOptimizer,
    is_expert_weight,
    written_optimizer,
)
from zerotools.formats.megatron.writing.torch_dist_files import (
    LARGEST_CHUNK,
    METADATA_JSON,
    StoredFiles,
    StoredPlace,
    StoredPlaces,
    StoredTensorPlace,
    common_state,
    extra_state_keys,
    stored_places,
)
from zerotools.formats.torch_optimizers import STATE_ROLE
from zerotools.io.distcp.lay_out_data_file import archive_of
from zerotools.io.files.read_json import read_json
from zerotools.io.huggingface.config_json import LARGEST_CONFIG
from zerotools.io.huggingface.model_sidecars import CONFIG as MODEL_CONFIG
from zerotools.io.output.files_without_tensors import file_of_bytes, sidecar_files

_NAMES = ("embedding.", "decoder.", "encoder.", "output_layer.", "mtp.", "position_embeddings.")
_RELEASE = "release"
_STATE = "optimizer.state."


def lay_out(
    source: Checkpoint,
    training: TrainingState,
    destination: Path,
    *,
    shard_bytes: int,
    expert_parallel: int | None = None,
    chunk_bytes: int = LARGEST_CHUNK,
) -> Target:
    """Plan a torch_dist checkpoint in the run directory `destination`, made from `source`, which
    has Megatron's tensor names.

    Files have at most `shard_bytes` bytes, and chunks at most `chunk_bytes`, unless one row is
    larger. `expert_parallel` is the number of ranks over which the experts will be split. Experts
    get a separate optimizer if this number is greater than 1, or if it is None and the source is
    not a Megatron checkpoint with one optimizer for all weights.

    Raises:
        BadRequest: the tensor names are not Megatron's, a layer or an expert is missing,
            `expert_parallel` is given for a model without experts, or the optimizer has unknown
            options.
        Unsupported: a stacked tensor is quantised.
        BadFile: config.json is damaged.
    """
    singles = _renamed(single_tensors(source))
    weights = _weights(singles.tensors)
    _refuse_other_names(source, weights)
    norms = norm_names(weights)
    places = stored_places(source.origin.path, weights)
    names = {old.name: tuple(key.name for key in new) for old, new in singles.keys.items()}
    apart = _are_experts_apart(source, weights, expert_parallel)
    optimizer = written_optimizer(source, training, singles.tensors, names, apart=apart)
    written = optimizer if isinstance(optimizer, WrittenOptimizer) else None
    iteration = _iteration(source, training, written)
    name = _RELEASE if written is None else f"iter_{iteration:07d}"
    files = StoredFiles(f"{name}/", shard_bytes, chunk_bytes)
    for place in _stored(singles.tensors, places, norms, with_state=written is not None):
        files.add(place)
    files.add_extra_states(sorted({*_extra_states(places, norms)}))
    config, arguments = _arguments(source, training, weights)
    common = common_state(
        arguments,
        written,
        iteration=iteration,
        is_uniform=places.is_uniform,
        scheduler=_schedule(training),
    )
    plans = {
        **files.plans(),
        f"{name}/{COMMON}": file_of_bytes(archive_of(common)),
        f"{name}/{CONFIG}": file_of_bytes(METADATA_JSON),
        TRACKER: file_of_bytes((_RELEASE if written is None else str(iteration)).encode()),
        **{f"{name}/{each}": plan for each, plan in sidecar_files(source).items()},
    }
    target = _target(source, destination, files.tensors, plans, iteration)
    return replace(
        target,
        notes=tuple(_notes(name, optimizer, arguments, config)),
        sources={
            key: tensor
            for key, tensor in singles.tensors.items()
            if key in files.tensors and source.tensors.get(key) is not tensor
        },
        target_keys={old: new for old, new in singles.keys.items() if new != (old,)},
        dropped=tuple(_dropped(source, training, optimizer)),
    )


def _renamed(singles: SingleTensors) -> SingleTensors:
    """Return the tensors, with norms renamed to the names under which they are written."""
    known = norm_names({key.name for key in singles.tensors}).written

    def new(key: Key) -> Key:
        return Key(known.get(key.name, key.name), key.role)

    return SingleTensors(
        {new(key): tensor for key, tensor in singles.tensors.items()},
        {old: tuple(map(new, keys)) for old, keys in singles.keys.items()},
    )


def _weights(tensors: Mapping[Key, Tensor]) -> dict[str, Tensor]:
    """Return the model's weights, keyed by name: the 16-bit weights, if masters exist too."""
    found = {key.name: t for key, t in tensors.items() if key.role in ("param", "buffer")}
    return found | {key.name: t for key, t in tensors.items() if key.role == "param16"}


def _refuse_other_names(source: Checkpoint, weights: Mapping[str, Tensor]) -> None:
    other = next((name for name in weights if not name.startswith(_NAMES)), None)
    if other is not None or not weights:
        raise BadRequest(
            f"{source.origin.path} has {other or 'no weights'}, but Megatron-Core has other names; "
            "add --map-to megatron, which renames and arranges the weights of a Hub model"
        )


def _are_experts_apart(
    source: Checkpoint, weights: Mapping[str, Tensor], expert_parallel: int | None
) -> bool | None:
    """Return whether the user's `expert_parallel` requires a separate optimizer for experts. Return
    None if the user did not set it.
    """
    if expert_parallel is None:
        return None
    if expert_parallel < 1 or not any(map(is_expert_weight, weights)):
        raise BadRequest(
            (
                f"--expert-parallel is {expert_parallel}, but at least 1 rank must have experts; "
                "choose a larger number"
            )
            if expert_parallel < 1
            else f"{source.origin.path} has no experts; leave --expert-parallel out"
        )
    return expert_parallel > 1


def _stored(
    tensors: Mapping[Key, Tensor], places: StoredPlaces, norms: NormNames, *, with_state: bool
) -> Iterator[StoredTensorPlace]:
    for key, tensor in tensors.items():
        has_half = Key(key.name, "param16") in tensors
        prefixes = _prefixes(key, tensor, has_half=has_half, with_state=with_state)
        flats = [
            prefix + each.flat for prefix in prefixes for each in _places(key.name, places, norms)
        ]
        if flats:
            yield StoredTensorPlace(
                key, tensor, flats, places.of(key.name).index, places.counts[key.name]
            )


def _prefixes(key: Key, tensor: Tensor, *, has_half: bool, with_state: bool) -> list[str]:
    """Return the key prefixes under which a tensor is written. A master without a 16-bit weight is
    written twice: as the weight and as the master.
    """
    if key.role in MOMENTS:
        return [f"{_STATE}{key.role}."] if with_state else []
    if key.role == "param16":
        return [""] if with_state else []
    if key.role == "param" and with_state and tensor.dtype.is_float:
        return [f"{_STATE}param."] if has_half else ["", f"{_STATE}param."]
    return [""]


def _places(name: str, places: StoredPlaces, norms: NormNames) -> Iterator[StoredPlace]:
    """Yield the position of a weight in the stored tensors, and the second position of a weight
    that is written under two names.
    """
    yield places.of(name)
    if (second := norms.second.get(name)) is not None:
        yield places.of(second)


def _extra_states(places: StoredPlaces, norms: NormNames) -> Iterator[str]:
    for name, counts in places.counts.items():
        for place in _places(name, places, norms):
            yield from extra_state_keys(place, counts)


def _iteration(
    source: Checkpoint, training: TrainingState, written: WrittenOptimizer | None
) -> int:
    if written is None:
        return 0
    known = (source.origin.step, training.steps, written.steps)
    return next(steps for steps in known if steps is not None)


def _run_arguments(training: TrainingState) -> Mapping[str, Any] | None:
    found = training.client.get("args")
    return found if isinstance(found, Mapping) and "num_layers" in found else None


def _arguments(
    source: Checkpoint, training: TrainingState, weights: Mapping[str, Tensor]
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return (config.json, the arguments of Megatron's script). The arguments are those of the run,
    and then the config is empty. If those are unknown, they are made from config.json. Without
    both, the arguments are None.
    """
    run = _run_arguments(training)
    rows = weights[EMBEDDING].shape[0] if EMBEDDING in weights else None
    if run is not None:
        return {}, {**run, "padded_vocab_size": rows or run.get("padded_vocab_size")}
    path = source.model_sidecars.get(MODEL_CONFIG) or source.own_config
    if path is None:
        return {}, None
    try:
        config: Any = read_json(path, LARGEST_CONFIG)
    except (ValueError, RecursionError):
        config = None
    if not isinstance(config, dict):
        raise BadFile(f"{path} is not a JSON object; name the config.json of the model")
    samples = {} if training.samples is None else {"consumed_train_samples": training.samples}
    return config, {**model_arguments(config, weights), **PARALLEL, **samples}


def _schedule(training: TrainingState) -> Any:
    """Return the run's schedule unchanged if it is a schedule of Megatron, else None."""
    found = training.lr_scheduler
    is_megatrons = isinstance(found, Mapping) and {"lr_decay_style", "num_steps"} <= found.keys()
    return found if is_megatrons else None


def _target(
    source: Checkpoint,
    destination: Path,
    tensors: Mapping[Key, Tensor],
    plans: Mapping[str, FilePlan],
    iteration: int,
) -> Target:
    ties = {OUTPUT: EMBEDDING} if Key(OUTPUT, "param") not in tensors else {}
    checkpoint = Checkpoint(
        root=destination,
        tensors=tensors,
        origin=Origin(FORMAT, destination, step=iteration),
        aliases={alias: name for alias, name in source.aliases.items() if ties.get(alias) == name},
        files={name: plan.size for name, plan in plans.items()},
    )
    return Target(checkpoint, plans)


def _notes(
    name: str,
    optimizer: WrittenOptimizer | DroppedOptimizer,
    arguments: Mapping[str, Any] | None,
    config: Mapping[str, Any],
) -> Iterator[str]:
    if isinstance(optimizer, WrittenOptimizer):
        yield from optimizer.notes
    else:
        yield f"{name}/ has only weights: Megatron starts at iteration 0, with a new optimizer"
    if arguments is None:
        yield (
            "no file has the sizes of the model, so --use-checkpoint-args does not work: pass "
            "--config-dir, or pass all options of the model to Megatron's script"
        )
    told = [*unset_options(config)]
    if told:
        yield (
            f"config.json has {', '.join(told)}, which Megatron does not read from a checkpoint: "
            "pass these settings to Megatron's script as options"
        )


def _dropped(
    source: Checkpoint, training: TrainingState, optimizer: WrittenOptimizer | DroppedOptimizer
) -> Iterator[Dropped]:
    roles = {key.role for key in source.tensors}
    if isinstance(optimizer, DroppedOptimizer):
        for role in sorted(roles - {"param", "buffer", "param16", STATE_ROLE}):
            yield Dropped(role, optimizer.why)
        if "param16" in roles:
            yield Dropped(
                "param16", "the masters are written as the weights, and Megatron casts them"
            )
        if training.steps:
            yield Dropped("steps", "without an optimizer a run begins at iteration 0")
        if training.groups:
            yield Dropped("param_groups", optimizer.why or "it has no optimizer state")
    if training.lr_scheduler is not None and (
        _schedule(training) is None or isinstance(optimizer, DroppedOptimizer)
    ):
        yield Dropped("lr_scheduler", "Megatron stores its schedule in another form")
    if training.loss_scale is not None:
        yield Dropped("loss_scale", "Megatron starts with a new loss scaler")
    if training.frozen:
        yield Dropped("frozen", "Megatron does not save which weights were frozen")
    if training.ds_config is not None:
        yield Dropped("ds_config", "it configures DeepSpeed")
    client = {*training.client} - {"args", "checkpoint_version", "content_metadata"}
    if client or STATE_ROLE in roles or (training.client and _run_arguments(training) is None):
        yield Dropped("client", "state that the training program added")
