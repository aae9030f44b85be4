"""The content of a universal checkpoint, checked against what DeepSpeed's loaders accept.

The loaders need a directory for each trained parameter. At stages 1 and 2, all parameters of a
group must have the same kinds of state, each with as many elements as the parameter, and the same
`step`.

From `optimizer_state.pt`, stages 1 and 2 read the scaler, `clip_grad`, `ds_version`, and the
options of each param group. Stage 3 reads the scaler, `state[0]["step"]` for every sub-group, and
the options of the first group, which it uses for all groups. So the file for stage 3 has only the
options that are equal in all groups. For other options, the resuming run keeps its own values. No
loader reads frozen weights and buffers; they are in the model file, not partitioned.

Source: DeepSpeed `checkpoint/universal_checkpoint.py`, `load_hp_checkpoint_state`;
`utils/tensor_fragment.py`, `map_to_flat_opt_states`; `runtime/base_optimizer.py` and
`runtime/zero/stage3.py`, `load_hp_checkpoint_state_from_checkpoint_dir[_stage3]`;
`runtime/engine.py`, `_load_checkpoint`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zerotools.core.checkpoint import Checkpoint, Key, Tensor, TensorRef
from zerotools.core.dtypes import FLOAT16, FLOAT32
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.core.target import Dropped
from zerotools.core.training_state import ParamGroup, Scalar, TrainingState
from zerotools.formats.deepspeed.foreign_param_groups import steps_are_numbers
from zerotools.formats.deepspeed.partitioning.kept_for_writer import DeepSpeedNative
from zerotools.formats.deepspeed.schema import state_dict_keys
from zerotools.formats.deepspeed.schema.expert_parallel import EXPERTS, StackedExperts
from zerotools.formats.deepspeed.schema.loss_scaler import loss_scaler_of, scaler_of
from zerotools.formats.deepspeed.schema.model_states import ModelStates
from zerotools.formats.deepspeed.universal.kept_for_writer import UniversalNative
from zerotools.formats.deepspeed.universal.optimizer_state import (
    OPTIMIZERS,
    ORDER,
    UNKNOWN,
)
from zerotools.io.files.directory_entries import stays_below_root
from zerotools.io.torchzip.pickle_values import Ordered, Size, Storage, StoredTensor, walk_values
from zerotools.io.torchzip.pt_file import TorchFile

STEP = "step"
MOMENTS = ("exp_avg", "exp_avg_sq")
_WEIGHTS = ("param16", "buffer", "module")
_LONGEST_NAME = 255 - len(".pt")


@dataclass(frozen=True)
class UniversalContents:
    """The tensors and numbers that a universal checkpoint will contain.

    Attributes:
        groups: for each param group, the names and shapes of the trained parameters, in the
            optimizer's order.
        states: the masters and optimizer state of the trained parameters, including `step` if it is
            a tensor.
        steps: parameter name -> its step, for all trained parameters.
        initial_state: the state tensors of parameters that have had no gradient yet. They are zero.
        model_file_tensors: the buffers, frozen weights and 16-bit copies, which are in the model
            file.
    """

    groups: Sequence[Mapping[str, tuple[int, ...]]]
    states: Mapping[Key, Tensor]
    steps: Mapping[str, Scalar]
    initial_state: Mapping[Key, Tensor]
    model_file_tensors: Mapping[Key, Tensor]
    dropped: Sequence[Dropped]

    @property
    def roles(self) -> set[str]:
        """The roles of the optimizer state, such as `exp_avg`, without the masters and `step`."""
        return {key.role for key in (*self.states, *self.initial_state)} - {"param", STEP}

    def steps_of(self, group: Mapping[str, tuple[int, ...]]) -> set[float]:
        return {self.steps[name].value for name in group if name in self.steps}


def contents_of(
    source: Checkpoint, training: TrainingState, stage: int | None = None
) -> UniversalContents:
    """Sort the tensors of `source` by their use in a universal checkpoint.

    At stage 3, Adam's state is created even if the optimizer made no step yet, because DeepSpeed's
    loader reads it.

    Raises:
        BadRequest: the source does not list the trained parameters, or one of them is missing.
        Unsupported: the source has experts, or state that DeepSpeed's loader refuses.
        BadFile: the name of a parameter or a role cannot be a file name.
    """
    groups = [_shapes(source, group) for group in training.groups]
    trained = {name for group in groups for name in group}
    if not trained:
        raise BadRequest(
            f"{source.origin.path} has no param groups, so it is not known which parameters were "
            "trained, and a universal checkpoint needs them: pass --lr and the other options of "
            "the optimizer"
        )
    numbers = _numbers(source, training)
    states, refused = {}, dict[str, None]()
    for key, tensor in source.tensors.items():
        if key.name not in trained or key.role in _WEIGHTS:
            continue
        if key.role == STEP:
            if numbers[key.name].dtype == tensor.dtype:
                states[key] = tensor
        elif tensor.shape == source.tensors[Key(key.name, "param")].shape:
            states[key] = tensor
        else:
            refused[key.role] = None
    refused |= dict.fromkeys(
        key.role for key in training.scalars if key.role != STEP and key not in states
    )
    whole = {
        key: tensor
        for key, tensor in source.tensors.items()
        if key.role in ("buffer", "param16") or (key.role == "param" and key.name not in trained)
    }
    begun = dict(_begun(groups, states))
    if stage == 3 and not numbers and (first := _first_step(training)) is not None:
        begun = {
            Key(key.name, role): Tensor(FLOAT32, tensor.shape, ())
            for key, tensor in states.items()
            for role in MOMENTS
        }
        numbers = dict.fromkeys((key.name for key in states), first)
    why = "DeepSpeed loads only the step, and tensors of the same shape as their parameter"
    dropped = [Dropped(role, why) for role in sorted(refused)]
    contents = UniversalContents(groups, states, numbers, begun, whole, dropped)
    _check(source, contents)
    return contents


def _numbers(source: Checkpoint, training: TrainingState) -> dict[str, Scalar]:
    """Return the step of each parameter, keyed by name, in the type that the optimizer of the
    resuming run uses.
    """
    found = {key.name: number for key, number in training.scalars.items() if key.role == STEP}
    is_native = isinstance(source.native, DeepSpeedNative | UniversalNative)
    if is_native or not steps_are_numbers(training.ds_config):
        return found
    return {name: Scalar(int(number.value)) for name, number in found.items()}


def _begun(
    groups: Sequence[Mapping[str, tuple[int, ...]]], states: Mapping[Key, Tensor]
) -> Iterator[tuple[Key, Tensor]]:
    """Yield initial state (zeros) for parameters without state, if other parameters of the same
    group have state.
    """
    for group in groups:
        kinds = {
            key.role: tensor.dtype
            for key, tensor in states.items()
            if key.name in group and key.role not in ("param", STEP)
        }
        have = {key.name for key in states if key.role in kinds}
        for name, shape in group.items():
            if name not in have:
                yield from (
                    (Key(name, role), Tensor(dtype, shape, ())) for role, dtype in kinds.items()
                )


def _first_step(training: TrainingState) -> Scalar | None:
    """Return the value of `step` before Adam's first step: a tensor for torch's Adam, a number for
    DeepSpeed's Adam, None for another optimizer.

    The option `capturable` shows that the optimizer is torch's Adam.
    """
    options = [group.options for group in training.groups if group.params]
    if not options or any("betas" not in each or "eps" not in each for each in options):
        return None
    return Scalar(0.0, FLOAT32) if "capturable" in options[0] else Scalar(0)


def _shapes(source: Checkpoint, group: ParamGroup) -> dict[str, tuple[int, ...]]:
    for name in group.params:
        if Key(name, "param") not in source.tensors:
            raise BadRequest(
                f"{source.origin.path} has no weight {name}, which its param groups list; take "
                "another checkpoint"
            )
        if EXPERTS in name:
            raise Unsupported(
                f"{source.origin.path} has experts ({name}), which DeepSpeed does not load from a "
                "universal checkpoint; make a native one with zerotools reshard"
            )
    return {name: source.tensors[Key(name, "param")].shape for name in group.params}


def _check(source: Checkpoint, contents: UniversalContents) -> None:
    path = source.origin.path
    for name in _names(contents):
        if not stays_below_root(name) or "/" in name or len(os.fsencode(name)) > _LONGEST_NAME:
            raise BadFile(
                f"{path}: {name!r:.80} cannot be the name of a file; rename the parameter"
            )
    if "fp32" in contents.roles or any(key.name == "optimizer_state.pt" for key in contents.states):
        raise BadFile(
            f"{path} has a parameter called optimizer_state.pt or a state called fp32, but a "
            "universal checkpoint has files with these names; rename it"
        )
    roles: dict[str, set[str]] = {}
    for key in (*contents.states, *contents.initial_state):
        roles.setdefault(key.name, set()).add(key.role)
    for number, group in enumerate(contents.groups):
        filled = [name for name, shape in group.items() if 0 not in shape]
        for name in filled:
            if roles[name] - {STEP} != roles[filled[0]] - {STEP}:
                raise Unsupported(
                    f"{path}: {name} has the state {_listed(roles[name])}, but {filled[0]} of "
                    f"the same param group has {_listed(roles[filled[0]])}; DeepSpeed loads "
                    "only groups with equal state"
                )
        if len(steps := contents.steps_of(group)) > 1:
            raise Unsupported(
                f"{path}: the parameters of group {number} are at steps {sorted(steps)}, but "
                "DeepSpeed stores only one step for a group"
            )


def _listed(roles: set[str]) -> str:
    return ", ".join(sorted(roles - {"param", STEP})) or "no state"


def _names(contents: UniversalContents) -> Iterator[str]:
    for key in (*contents.states, *contents.initial_state):
        yield key.name
        yield key.role


_KEPT = (
    *state_dict_keys.SCALER_KEYS,
    state_dict_keys.CLIP_GRAD,
    state_dict_keys.ZERO_STAGE,
    state_dict_keys.DS_VERSION,
)


def source_model(source: Checkpoint) -> ModelStates | None:
    """Return the content of the model file, if DeepSpeed saved `source`; else None."""
    native = source.native
    if isinstance(native, DeepSpeedNative):
        return native.mp_shards[0].model
    return native.model if isinstance(native, UniversalNative) else None


def source_experts(source: Checkpoint) -> StackedExperts:
    """Return AutoEP's experts in `source`. The result is empty if DeepSpeed did not save `source`,
    because other formats have no such experts.
    """
    model = source_model(source)
    return model.stacked_experts if model is not None else StackedExperts()


def expert_tree(stored: StoredTensor, experts: int) -> dict[str, Any]:
    """Return the tree of a file for a stacked weight of AutoEP, or for an optimizer state of such a
    weight. `experts` is the number of experts in the file.
    """
    return {"param": stored, "cat_dim": 0, "is_expert_param": True, "ep_num_experts": experts}


def source_optimizer(source: Checkpoint) -> tuple[TorchFile | None, Mapping[str, Any]]:
    """Return one optimizer file of the source, and the tree in it. The file is None, and the tree
    empty, if no such file exists.
    """
    native = source.native
    if isinstance(native, DeepSpeedNative):
        present = [optim for optim in native.mp_shards[0].optim_states if optim is not None]
        return (present[0].file, present[0].fields.tree) if present else (None, {})
    if isinstance(native, UniversalNative):
        return native.saved.file, native.saved.tree
    return None, {}


def is_writable(value: Any, file: TorchFile | None) -> bool:
    """Return whether a tree can be pickled into the output, with its tensors copied from `file`."""
    return not any(
        isinstance(part, TensorRef) or (file is None and isinstance(part, StoredTensor | Storage))
        for part in walk_values(value)
    )


def universal_model_tree(
    source: Checkpoint,
    training: TrainingState,
    shapes: Sequence[Mapping[str, tuple[int, ...]]],
    weights: Mapping[str, StoredTensor],
    client: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the tree of `mp_rank_00_model_states.pt`; `weights` are the tensors for its
    `module`.
    """
    model = source_model(source)
    known = dict(model.fields.tree) if model is not None else {}
    buffers = [key.name for key in source.tensors if key.role == "buffer"]
    schedule = training.lr_scheduler if model is not None else state_dict_keys.schedule_of(training)
    counted = {} if training.samples is None else {state_dict_keys.GLOBAL_SAMPLES: training.samples}
    experts = source_experts(source)
    kept = [state_dict_keys.DATA_SAMPLER, state_dict_keys.RANDOM_LTD, state_dict_keys.DS_VERSION]
    if experts.layers:
        kept += state_dict_keys.AUTOEP_KEYS
    values = {
        state_dict_keys.MODULE: _module(model, weights, source.aliases),
        state_dict_keys.BUFFER_NAMES: buffers,
        state_dict_keys.PARAM_SHAPES: [
            Ordered({n: Size(experts.local_shape(n, shape)) for n, shape in group.items()})
            for group in shapes
        ],
        state_dict_keys.SHARED_PARAMS: dict(source.aliases),
        state_dict_keys.LR_SCHEDULER: schedule,
        **counted,
        state_dict_keys.DP_WORLD_SIZE: source.origin.world_size or 1,
        state_dict_keys.DS_CONFIG: dict(training.ds_config or {}),
        **{key: known[key] for key in (*kept, state_dict_keys.DP_WORLD_SIZE) if key in known},
    }
    return state_dict_keys.new_model_tree(training, values) | dict(client)


def _module(
    model: ModelStates | None, weights: Mapping[str, StoredTensor], aliases: Mapping[str, str]
) -> Ordered:
    """Return `module` with the names in the order of the source. A tied name refers to the same
    tensor as the first name.
    """
    named = dict(weights) | {
        alias: weights[name] for alias, name in aliases.items() if name in weights
    }
    order = [name for name in (model.module if model is not None else None) or () if name in named]
    return Ordered({name: named[name] for name in dict.fromkeys([*order, *named])})


def optimizer_tree(source: Checkpoint, training: TrainingState, step: Any) -> dict[str, Any]:
    """Return the tree of `zero/optimizer_state.pt`. `step` is the step of the first parameter, or
    None.
    """
    _, saved = source_optimizer(source)
    kept = (
        _KEPT
        if loss_scaler_of(saved) == training.loss_scaler
        else _KEPT[len(state_dict_keys.SCALER_KEYS) :]
    )
    known = {key: saved[key] for key in kept if key in saved}
    if training.loss_scale is not None and state_dict_keys.LOSS_SCALER not in known:
        scaler = scaler_of(training.loss_scale, training.ds_config or {}, FLOAT16)
        known |= {
            state_dict_keys.LOSS_SCALER: scaler.value,
            state_dict_keys.DYNAMIC_LOSS_SCALE: scaler.is_dynamic,
        }
    model = source_model(source)
    version = (model.version if model is not None else None) or state_dict_keys.VERSION
    known.setdefault(state_dict_keys.DS_VERSION, version)
    groups = [
        state_dict_keys.param_group(group.options, [n]) for n, group in enumerate(training.groups)
    ]
    common = state_dict_keys.param_group(common_options(training.groups), [])
    state = {} if step is None else {0: {"step": step}}
    return {
        **known,
        ORDER: OPTIMIZERS if training.is_ordered else UNKNOWN,
        state_dict_keys.PARAM_GROUPS: groups,
        state_dict_keys.STATE_DICT: state_dict_keys.torch_state(state, [common]),
    }


def common_options(groups: Sequence[ParamGroup]) -> dict[str, Any]:
    """Return the options that have the same value in all param groups."""
    first = groups[0].options if groups else {}
    return {
        key: value
        for key, value in first.items()
        if all(key in group.options and group.options[key] == value for group in groups)
    }
