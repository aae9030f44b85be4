"""Lay out a DeepSpeed checkpoint from a checkpoint of another format, for runs of ZeRO stage 1, 2
or 3."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from zerotools.core.checkpoint import Checkpoint, Key, Origin, Tensor
from zerotools.core.dtypes import FLOAT16, DType
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.core.target import LOOSE, Dropped, Target, ZeroBytes
from zerotools.core.training_state import TrainingState
from zerotools.formats.deepspeed.change_stage import (
    COPY,
    new_stored_tensor,
    weight_role,
)
from zerotools.formats.deepspeed.foreign_param_groups import (
    ForeignCheckpoint,
    group_of,
    never_stepped,
)
from zerotools.formats.deepspeed.mp_rank_logical_state import LogicalState
from zerotools.formats.deepspeed.partitioning.kept_for_writer import refuse_stacked_experts
from zerotools.formats.deepspeed.schema import state_dict_keys
from zerotools.formats.deepspeed.schema.ds_config import (
    AS_IS,
    PRECISION_KEYS,
    ZeroSettings,
    configured_precision,
)
from zerotools.formats.deepspeed.schema.expert_parallel import is_expert
from zerotools.formats.deepspeed.schema.loss_scaler import scaler_of
from zerotools.formats.deepspeed.schema.optim_states import STAGE_3
from zerotools.formats.deepspeed.schema.state_dict_keys import schedule_of
from zerotools.formats.deepspeed.schema.tag_file_names import LATEST
from zerotools.formats.deepspeed.writing.lay_out_resharded import lay_out_mp_rank, unlisted_keys
from zerotools.formats.deepspeed.writing.notes_for_user import needed_settings
from zerotools.formats.deepspeed.writing.plan_pt_file import OutputFiles
from zerotools.formats.deepspeed.writing.target_layout import target_layout_of, with_config
from zerotools.io.output.files_without_tensors import file_of_bytes, sidecar_files
from zerotools.io.torchzip.pickle_values import Ordered, Size, StoredTensor, walk_values

ONE_STEP_LESS = (
    "the optimizer counts one step more than the run: without ZeRO, DeepSpeed begins with a step "
    "on zero gradients; with ZeRO it does not, so the output does not count this step"
)


def lay_out_zero(
    source: Checkpoint,
    training: TrainingState,
    destination: Path,
    *,
    world_size: int,
    settings: ZeroSettings = AS_IS,
) -> Target:
    """Plan DeepSpeed's files for `world_size` ranks, made from a checkpoint of any format.

    Raises:
        BadRequest: values that DeepSpeed needs are unknown; the message lists all of these values.
        Unsupported: the optimizer state differs between parameters of a group, or the source has
            experts.
    """
    settled = settings.settled()
    _check_dense(source)
    counted = _as_zero_counts(source, training)
    foreign = _foreign(source, counted, settled)
    logical = logical_state_from(foreign)
    layout = target_layout_of(logical, settings, world_size)
    tag = f"global_step{foreign.training.steps or 0}"
    made = with_config(logical, layout)
    files = lay_out_mp_rank(made, layout, tag, 0, bf16=foreign.precision == PRECISION_KEYS["bf16"])
    files = _with_zeros(files, set(never_stepped(foreign)))
    plans = {**sidecar_files(source), **files.plans, LATEST[0]: file_of_bytes(tag.encode())}
    checkpoint = Checkpoint(
        destination,
        files.tensors,
        Origin("deepspeed", destination, world_size=world_size, stage=foreign.stage, tag=tag),
        aliases=source.aliases,
        files={name: plan.size for name, plan in plans.items()},
    )
    return Target(
        checkpoint,
        plans,
        notes=(
            *needed_settings(logical, layout, settings),
            *((ONE_STEP_LESS,) if counted is not training else ()),
            *_notes(foreign, training),
        ),
        carried=files.carried,
        sources=files.sources,
        dropped=tuple(_dropped(foreign)),
        unlisted=unlisted_keys(files.tensors),
    )


def _as_zero_counts(source: Checkpoint, training: TrainingState) -> TrainingState:
    """Return the training state with the optimizer's steps counted as ZeRO counts them.

    In DeepSpeed, a 16-bit run without ZeRO begins with a step on zero gradients, which the
    optimizer counts but the run does not. In the files of a run with ZeRO both counts must agree,
    so one step is subtracted.
    """
    if source.origin.format != "deepspeed" or source.origin.stage != 0 or not training.steps:
        return training
    updates = training.steps - (training.skipped or 0)
    steps = {key: s for key, s in training.scalars.items() if key.role == "step"}
    if {scalar.value for scalar in steps.values()} != {updates + 1}:
        return training
    less = {key: replace(scalar, value=scalar.value - 1) for key, scalar in steps.items()}
    return replace(training, scalars={**training.scalars, **less})


def _check_dense(source: Checkpoint) -> None:
    refuse_stacked_experts(source)
    found = next((key.name for key in source.tensors if is_expert(key.name)), None)
    if found is not None:
        raise Unsupported(
            f"{source.origin.path} has DeepSpeed's experts ({found}), which need separate files "
            "and param groups; zerotools writes them only from DeepSpeed checkpoints"
        )


def _foreign(
    source: Checkpoint, training: TrainingState, settled: ZeroSettings
) -> ForeignCheckpoint:
    """Return the source with all values that DeepSpeed needs. Raise BadRequest, as `lay_out_zero`
    describes, if a value is unknown.
    """
    config = settled.ds_config if settled.ds_config is not None else training.ds_config
    precision = _precision(source, training, settled)
    missing = []
    if settled.stage is None:
        missing.append("the ZeRO stage (--stage or --ds-config)")
    if not training.groups:
        missing.append(
            "the parameters of the optimizer and their options (--lr, --betas, --eps, "
            "--weight-decay, or --ds-config)"
        )
    elif not training.is_ordered:
        missing.append(
            "the order of the parameters in the model, which DeepSpeed needs to find their "
            "masters (--order model, or --order FILE with one name per line)"
        )
    if precision is None:
        missing.append("the dtype of the computation (--ds-config FILE, with bf16 or fp16)")
    if missing or settled.stage is None or precision is None:
        raise BadRequest(
            f"a DeepSpeed checkpoint needs values that {source.origin.path} does not have: "
            f"{'; '.join(missing)}; pass the options in parentheses"
        )
    training = training.with_counted_steps()
    made = dict(config) if config is not None else _least_config(precision)
    return ForeignCheckpoint(source, training, made, precision, settled.stage)


def _precision(source: Checkpoint, training: TrainingState, settled: ZeroSettings) -> DType | None:
    """Return the dtype that the run computes in; None if it is unknown. Raise BadRequest if the
    configuration and the source have different dtypes.
    """
    asked, known = configured_precision(settled.ds_config), training.precision
    trains = any(key.role not in ("param", "buffer", LOOSE) for key in source.tensors)
    if asked is not None and known is not None and trains and asked != known:
        raise BadRequest(
            f"{source.origin.path} was trained in {known}, but the configuration trains in "
            f"{asked}; zerotools does not change the precision: correct the configuration"
        )
    return asked or known


def _least_config(precision: DType) -> dict[str, Any]:
    """Return the smallest DeepSpeed configuration that records the precision of a run. It is used
    if the run's configuration is unknown.
    """
    return {key: {"enabled": True} for key, dtype in PRECISION_KEYS.items() if dtype == precision}


def _with_zeros(files: OutputFiles, names: set[str]) -> OutputFiles:
    """Return the files with zeros as the optimizer state of the parameters `names`, which have no
    state in the source. Before its first step, an optimizer has zeros too.
    """
    if not names:
        return files
    filled = {
        key: tensor
        for key, tensor in files.tensors.items()
        if key.name in names and key.role not in ("param", "param16", COPY)
    }
    zeros: dict[str, list[ZeroBytes]] = {}
    for tensor in filled.values():
        for chunk in tensor.chunks:
            run = ZeroBytes(chunk.offset, chunk.box.numel * tensor.dtype.itemsize)
            zeros.setdefault(chunk.file, []).append(run)
    plans = {
        name: replace(plan, zeros=[*plan.zeros, *zeros.get(name, ())])
        for name, plan in files.plans.items()
    }
    tensors = {key: tensor for key, tensor in files.tensors.items() if key not in filled}
    return replace(files, plans=plans, tensors=tensors, carried={**files.carried, **filled})


def _notes(foreign: ForeignCheckpoint, training: TrainingState) -> Iterator[str]:
    if training.steps is None and foreign.training.steps:
        yield (
            f"training resumes at step {foreign.training.steps}, the count of the optimizer; "
            "scheduler state and data position are not carried over"
        )
    begun = never_stepped(foreign)
    if begun:
        yield (
            f"{_some(begun)}: no state, because there was no gradient yet; zeros are written, and "
            "DeepSpeed uses the step of the group"
        )
    guessed = [name for name in foreign.frozen if name not in foreign.training.frozen]
    if guessed:
        yield f"no param group has {_some(guessed)}, so they are written as frozen parameters"
    scale = foreign.training.loss_scale
    if foreign.precision == FLOAT16 and scaler_of(scale, foreign.config, FLOAT16).is_new:
        yield "the source has no loss scale: the run starts with the one in the configuration"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if names[5:] else "")


def _dropped(foreign: ForeignCheckpoint) -> Iterator[Dropped]:
    training, tensors = foreign.training, foreign.source.tensors
    if foreign.stage == 3 and any(key.role == "param16" for key in tensors):
        why = "stage 3 keeps no 16-bit copies: they are cast from the masters"
        yield Dropped("param16", why)
    if training.lr_scheduler is not None and schedule_of(training) is None:
        why = "only a DeepSpeed scheduler is carried over: the program loads this one from its file"
        yield Dropped("lr_scheduler", why)
    kept: Mapping[str, Any] = dict(carried_client(training))
    left = sorted(training.client.keys() - kept.keys())
    loose = sorted(key.name for key in tensors if key.role == LOOSE)
    if left or loose:
        names = ", ".join([*left, *loose][:5])
        yield Dropped("client", f"{names}: tensors in the client state cannot be stored")
    if training.loss_scale is not None and foreign.precision != FLOAT16:
        yield Dropped("loss_scale", "only fp16 runs have one")


def logical_state_from(foreign: ForeignCheckpoint) -> LogicalState:
    """Return the logical state with which a DeepSpeed run resumes from the checkpoint `foreign`.

    The trees have the form that DeepSpeed 0.19.8 saves. DeepSpeed finds weights by name, but
    masters and moments by position. So the groups must list their parameters in the order of the
    engine's optimizer.

    Source: DeepSpeed `runtime/engine.py`: `_save_checkpoint`; `runtime/zero/stage_1_and_2.py`,
    `stage3.py`: `state_dict`.

    Raises:
        BadRequest: a parameter of a group is not in the source, or its group lacks an option.
        Unsupported: parameters of a group have different kinds of state, or different steps.
    """
    known_storages: dict[str, bytes] = {}
    groups = [
        group_of(foreign, number, known_storages) for number in range(len(foreign.training.groups))
    ]
    module, weights, sources = _module(foreign)
    return LogicalState(
        kind=foreign.kind,
        stage=foreign.stage,
        groups=groups,
        model=_model_tree(foreign, module),
        optimizer={
            state_dict_keys.STATE_DICT: _optimizer_state(foreign),
            state_dict_keys.DS_CONFIG: dict(foreign.config),
            state_dict_keys.DS_VERSION: state_dict_keys.VERSION,
        },
        shapes={name: Size(shape) for group in groups for name, shape in group.shapes.items()},
        frozen=foreign.frozen,
        precision=foreign.precision,
        weights=weights,
        weight_sources=sources,
        known_storages=known_storages,
    )


def _optimizer_state(foreign: ForeignCheckpoint) -> dict[str, Any]:
    """Return the value of `optimizer_state_dict`. The writer replaces every value in it that is
    None.
    """
    scaler = scaler_of(foreign.training.loss_scale, foreign.config, foreign.precision).keys()
    if foreign.kind == STAGE_3:
        return state_dict_keys.zero3_state(scaler, {})
    clip = foreign.config.get("gradient_clipping")
    clip = clip if isinstance(clip, int | float) else None
    return state_dict_keys.zero12_state(scaler, clip, {}, foreign.stage, state_dict_keys.VERSION)


def _module(
    foreign: ForeignCheckpoint,
) -> tuple[Ordered, dict[Key, StoredTensor], dict[Key, Tensor]]:
    """Return three values: `module` with the weights (at stage 3, with empty placeholders), the
    tensors in it that are filled later, and the source of each such tensor.
    """
    module, trained, tensors = Ordered(), foreign.trained, foreign.source.tensors
    weights: dict[Key, StoredTensor] = {}
    sources: dict[Key, Tensor] = {}
    for key, tensor in tensors.items():
        if key.role not in ("param", "buffer"):
            continue
        is_weight = key.name in trained or key.name in foreign.frozen
        # An untrained tensor may be a buffer, so it keeps its dtype. DeepSpeed casts frozen weights
        # when it loads them.
        dtype = foreign.precision if key.name in trained else tensor.dtype
        if foreign.kind == STAGE_3 and is_weight:
            module[key.name] = new_stored_tensor(f"empty-{key.name}", dtype, (0,))
            continue
        own = Key(key.name, weight_role(dtype)) if key.name in trained else key
        if not is_weight:
            own = Key(key.name, "buffer")
        copy = tensors.get(Key(key.name, "param16"))
        sources[own] = copy if copy is not None and copy.dtype == dtype else tensor
        module[key.name] = weights[own] = new_stored_tensor(
            f"whole-{key.name}", dtype, tensor.shape
        )
    for alias, name in foreign.source.aliases.items():
        if name in module:
            module[alias] = module[name]
    return module, weights, sources


def _model_tree(foreign: ForeignCheckpoint, module: Ordered) -> dict[str, Any]:
    training, frozen = foreign.training, foreign.frozen
    shapes: Ordered | None = Ordered({name: Size(each.shape) for name, each in frozen.items()})
    fragments: Ordered | None = Ordered()
    if foreign.stage == 2:
        fragments = Ordered({name: module[name] for name in frozen})
    elif foreign.stage == 1:
        shapes = fragments = None
    values = {
        state_dict_keys.MODULE: module,
        state_dict_keys.BUFFER_NAMES: [
            key.name for key in foreign.source.tensors if _is_buffer(foreign, key)
        ],
        state_dict_keys.FROZEN_SHAPES: shapes,
        state_dict_keys.SHARED_PARAMS: dict(foreign.source.aliases),
        state_dict_keys.FROZEN_FRAGMENTS: fragments,
        state_dict_keys.LR_SCHEDULER: state_dict_keys.schedule_of(training),
        state_dict_keys.GLOBAL_SAMPLES: training.samples or 0,
        state_dict_keys.PARALLEL_DIMENSIONS: {"pp_degree": 1, "tp_degree": 1},
        state_dict_keys.DS_CONFIG: dict(foreign.config),
    }
    return {**state_dict_keys.new_model_tree(training, values), **dict(carried_client(training))}


def _is_buffer(foreign: ForeignCheckpoint, key: Key) -> bool:
    is_other = key.name not in foreign.trained and key.name not in foreign.frozen
    return key.role in ("param", "buffer") and is_other


def carried_client(training: TrainingState) -> Iterator[tuple[str, Any]]:
    """Yield (key, value) for the values without tensors in the client state, which the training
    program itself saved."""
    for key, value in training.client.items():
        if not any(isinstance(part, StoredTensor) for part in walk_values(value)):
            yield key, value
