"""Lay out a DCP from a checkpoint of another format, with the names of the program that resumes
from it.

FSDP2 holds the masters and casts them when it computes. So `param` keeps its dtype, and there is no
16-bit copy. `step` and similar values become the 0-d tensors of torch's optimizers. A state dict
lists a tied weight under each of its names, because loading needs all the names; the names share
one copy of the bytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.core.checkpoint import Checkpoint, Key, Origin, Tensor
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.dtypes import FLOAT32, DType
from zerotools.core.errors import BadRequest
from zerotools.core.target import Dropped, Target
from zerotools.core.training_state import ParamGroup, Scalar, TrainingState
from zerotools.formats.dcp.kept_for_writer import DcpNative, native_of
from zerotools.formats.dcp.lay_out_rank_files import (
    CopiedTensor,
    DcpEntry,
    DcpFiles,
    KnownTensor,
    PlainValue,
    TiedTensor,
    lay_out_directory,
)
from zerotools.formats.dcp.lay_out_resharded import check_world_size
from zerotools.formats.dcp.naming_styles import DcpStyle, KeyPath, style_of
from zerotools.formats.dcp.several_directories import is_replicated
from zerotools.formats.torch_optimizers import (
    STATE_ROLE,
    WEIGHT_ROLES,
    OptimizerClass,
    optimizer_class_of,
    optimizer_of,
)
from zerotools.io.distcp.lay_out_data_file import archive_of
from zerotools.io.numeric.scalar_tensors import scalar_bytes
from zerotools.io.output.files_without_tensors import sidecar_files

DcpEntries = dict[KeyPath, DcpEntry]


def lay_out_dcp(
    source: Checkpoint,
    training: TrainingState,
    destination: Path,
    *,
    world_size: int,
    style: str,
) -> Target:
    """Plan a DCP in `destination` for `world_size` ranks of FSDP2, made from a checkpoint of any
    format.

    `style`, one of `STYLES`, is the program that resumes from the output; it determines the names
    of the values. Only dtypes, shapes and names of the source's tensors are used.

    Raises:
        BadRequest: `style` is unknown, `world_size` is less than 1, or `source` has optimizer state
            but no param groups.
    """
    check_world_size(world_size)
    chosen = style_of(style)
    weights = _weights(source, training)
    state = roles_of_trained(source, training)
    _refuse_nameless(source, state, weights)
    groups = groups_of(training, state)
    if state and groups.missing:
        raise BadRequest(
            f"{source.origin.path} has optimizer state, but not all options with which an "
            f"optimizer resumes; give {', '.join(groups.missing)}"
        )
    ties = {alias: name for alias, name in source.aliases.items() if name in weights}
    model: DcpEntries = {chosen.weight(name): copied for name, copied in weights.items()}
    model |= {
        chosen.weight(alias): TiedTensor(chosen.weight(name).flat) for alias, name in ties.items()
    }
    optimizer = dict(_state(source, training, state, weights, groups, chosen))
    if not groups.missing:
        optimizer |= _groups(groups, chosen)
    return _target(
        source,
        training,
        destination,
        _directories(model, optimizer, chosen, world_size),
        world_size,
        ties,
        (*_dropped(source, training, groups), *groups.dropped),
        tuple(_notes(training, groups, chosen, has_state=bool(state))),
    )


def _weights(source: Checkpoint, training: TrainingState) -> dict[str, CopiedTensor]:
    found: dict[str, CopiedTensor] = {}
    for key, tensor in source.tensors.items():
        master = Key(key.name, "param")
        if key.role == "param16" and master not in source.tensors:
            key = master
        if key.role in ("param", "buffer"):
            is_buffer = key.role == "buffer" or key.name in training.buffers
            sharded = not is_buffer and _is_sharded(source, key, tensor)
            found[key.name] = CopiedTensor(key, tensor, sharded)
    return found


def _is_sharded(source: Checkpoint, key: Key, tensor: Tensor) -> bool:
    """Return whether FSDP2 would shard this tensor.

    FSDP2 shards parameters only. A tensor is not a parameter if its dtype is not floating-point, or
    if every rank that saved `source`, a DCP, held the whole tensor.
    """
    if not tensor.shape or not tensor.dtype.is_float:
        return False
    native = source.native
    if not isinstance(native, DcpNative) or source.origin.stage in (0, 1):
        return True
    return not is_replicated(source, native.flat_keys.get(key, ""), tensor)


def _refuse_nameless(
    source: Checkpoint, state: Mapping[str, list[str]], weights: Mapping[str, CopiedTensor]
) -> None:
    strange = [name for name in state if name not in weights]
    if strange:
        raise BadRequest(
            f"{source.origin.path} has optimizer state of {strange[0]} and {len(strange) - 1} "
            "others, but no weights with these names, and a DCP names optimizer state after its "
            "weight; convert only the weights, with --weights-only"
        )


def _state(
    source: Checkpoint,
    training: TrainingState,
    state: Mapping[str, list[str]],
    weights: Mapping[str, CopiedTensor],
    groups: CompletedGroups,
    style: DcpStyle,
) -> Iterator[tuple[KeyPath, DcpEntry]]:
    for name in dict.fromkeys(name for group in groups.groups for name in group.params):
        for role in state.get(name, ()):
            key = Key(name, role)
            scalar = training.scalars.get(key)
            if scalar is not None:
                yield (
                    style.state(name, role),
                    _number(key, scalar, is_torch=groups.kind is not None),
                )
            else:
                tensor = source.tensors[key]
                sharded = weights[name].sharded and bool(tensor.shape)
                yield style.state(name, role), CopiedTensor(key, tensor, sharded)


def _number(key: Key, scalar: Scalar, *, is_torch: bool) -> DcpEntry:
    """Return the entry for a number in the optimizer state: a 0-d tensor, or a plain value if the
    number has no dtype. For a torch optimizer, a `step` that is not a float becomes float32.
    """
    dtype: DType | None = scalar.dtype
    if is_torch and key.role == "step" and (dtype is None or not dtype.is_float):
        dtype = FLOAT32
    if dtype is None:
        return PlainValue(archive_of(scalar.value))
    return KnownTensor(key, Tensor(dtype, (), ()), scalar_bytes(scalar.value, dtype))


def _groups(groups: CompletedGroups, style: DcpStyle) -> DcpEntries:
    archives: dict[str, PlainValue] = {}

    def archived(value: Any) -> PlainValue:
        return archives.setdefault(repr(value), PlainValue(archive_of(value)))

    return {place: archived(value) for place, value in style.groups(groups.groups)}


def _directories(
    model: DcpEntries, optimizer: DcpEntries, style: DcpStyle, world_size: int
) -> list[DcpFiles]:
    parts = {style.model: model}
    if style.optimizer == style.model:
        parts[style.model] = model | optimizer
    elif optimizer:
        parts[style.optimizer] = optimizer
    return [
        lay_out_directory(
            {place.flat: entry for place, entry in part.items()},
            {place.flat: place.path for place in part},
            world_size,
            prefix=prefix,
        )
        for prefix, part in parts.items()
    ]


def _target(
    source: Checkpoint,
    training: TrainingState,
    destination: Path,
    parts: list[DcpFiles],
    world_size: int,
    ties: Mapping[str, str],
    dropped: tuple[Dropped, ...],
    notes: tuple[str, ...],
) -> Target:
    files = {name: plan for part in parts for name, plan in part.files.items()}
    files |= sidecar_files(source)
    tensors = {key: tensor for part in parts for key, tensor in part.tensors.items()}
    checkpoint = Checkpoint(
        root=destination,
        tensors=tensors,
        origin=Origin("dcp", destination, world_size=world_size, step=training.steps),
        aliases=ties,
        files={name: plan.size for name, plan in files.items()},
    )
    return Target(
        checkpoint,
        files,
        notes=notes,
        carried={key: tensor for part in parts for key, tensor in part.known.items()},
        sources={
            key: source.tensors[Key(key.name, "param16")]
            for key in tensors
            if key not in source.tensors
        },
        dropped=dropped,
    )


def _dropped(
    source: Checkpoint, training: TrainingState, groups: CompletedGroups
) -> Iterator[Dropped]:
    roles = {key.role for key in source.tensors}
    if any(k.role == "param16" and Key(k.name, "param") in source.tensors for k in source.tensors):
        yield Dropped("param16", "FSDP2 casts the masters itself")
    if "buffer" in roles:
        yield Dropped("buffer", "the tensors are kept, but a DCP does not mark them as buffers")
    if training.frozen:
        yield Dropped("frozen", "a DCP does not say which weights were frozen")
    if training.groups and groups.missing:
        yield Dropped("param_groups", f"they lack {', '.join(groups.missing)}")
    if training.lr_scheduler is not None:
        yield Dropped("lr_scheduler", "each program stores its schedule in another form")
    if training.loss_scale is not None:
        yield Dropped(
            "loss_scale", "the weights and moments are not scaled, and FSDP2 has no loss scale"
        )
    if any(n is not None for n in (training.steps, training.skipped, training.samples)):
        yield Dropped("steps", "counters of the run; the steps of the optimizer are kept")
    if training.ds_config is not None:
        yield Dropped("ds_config", "it configures DeepSpeed")
    if training.client or STATE_ROLE in roles:
        yield Dropped("client", "state that the training program added")
    job = native_of(source).job
    if job is not None and job.random_states:
        yield Dropped("random state", f"it belongs to {count_text(job.world_size, 'rank')}")


def _is_said(training: TrainingState) -> bool:
    return bool(training.optimizer or optimizer_of(training.groups))


def _notes(
    training: TrainingState, groups: CompletedGroups, style: DcpStyle, *, has_state: bool
) -> Iterator[str]:
    stateless = groups.kind is not None and groups.kind.name == "SGD" and training.groups
    if not has_state and not stateless:
        yield "the output has no optimizer state: load only the model"
    elif has_state and groups.kind is not None and not _is_said(training):
        yield f"no file records the optimizer; the output is for torch's {groups.kind.name}"
    if style.name == "torchtitan":
        yield (
            "the output has no lr_scheduler, dataloader and train_state: load it in torchtitan "
            "with checkpoint.exclude_from_loading = lr_scheduler,dataloader,train_state"
        )


# Options that only DeepSpeed uses, and keys of a group that are written separately.
_ANOTHERS = frozenset({"bias_correction", "moe", "params", "param_names", "state", "step"})
_LONGEST = 16


@dataclass(frozen=True)
class CompletedGroups:
    """Param groups that have every option that torch's optimizer needs.

    `missing` describes, for the user, the options that the training state lacks. `kind` is torch's
    optimizer class; None if the optimizer is not one of torch's. `dropped` are the options that
    torch's class does not have.
    """

    kind: OptimizerClass | None
    groups: tuple[ParamGroup, ...]
    missing: tuple[str, ...]
    dropped: tuple[Dropped, ...]


def roles_of_trained(source: Checkpoint, training: TrainingState) -> dict[str, list[str]]:
    """Return, for each parameter name, the roles of its optimizer state, with `step` first."""
    found: dict[str, dict[str, None]] = {}
    keys = (key for key in source.tensors if key.role not in (*WEIGHT_ROLES, STATE_ROLE))
    for key in (*training.scalars, *keys):
        found.setdefault(key.name, {})[key.role] = None
    return {name: sorted(roles, key=lambda role: role != "step") for name, roles in found.items()}


def groups_of(training: TrainingState, state: Mapping[str, Collection[str]]) -> CompletedGroups:
    """Add the missing options to the param groups of a run. `state` maps each parameter to the
    roles of its optimizer state.
    """
    kind = optimizer_class_of(training, {role for roles in state.values() for role in roles})
    needed = kind.needed if kind is not None else ("lr",)
    missing: dict[str, None] = {}
    for group in training.groups or ([ParamGroup((), {})] if state else []):
        missing |= dict.fromkeys(
            name for name in needed if not _is_recorded(group.options.get(name))
        )
    named = {name for group in training.groups for name in group.params}
    strays = [name for name in state if name not in named] if training.groups else []
    if strays:
        missing[f"the param group of {strays[0]}" + _others(len(strays) - 1)] = None
    return CompletedGroups(
        kind,
        tuple(
            ParamGroup(params, _complete(group.options, kind))
            for params, group in zip(_members(training), training.groups, strict=True)
        ),
        tuple(missing),
        tuple(_dropped_options(training)),
    )


def _members(training: TrainingState) -> list[tuple[str, ...]]:
    """Return the names of the parameters in each param group, including frozen parameters.

    torch's groups list frozen parameters too, but DeepSpeed's files do not. A single empty group
    must be the group of the frozen parameters.
    """
    members = [group.params for group in training.groups]
    empty = [number for number, params in enumerate(members) if not params]
    if len(empty) == 1:
        members[empty[0]] = tuple(sorted(training.frozen))
    return members


def _others(count: int) -> str:
    return f" and {count} others" if count else ""


def _complete(options: Mapping[str, Any], kind: OptimizerClass | None) -> dict[str, Any]:
    own = {
        name: _as_torch(name, value)
        for name, value in options.items()
        if name not in _ANOTHERS and is_plain(value)
    }
    return {**(kind.defaults if kind is not None else {}), **own}


def _is_recorded(value: Any) -> bool:
    return value is not None and is_plain(value)


def _as_torch(name: str, value: Any) -> Any:
    """Return an option's value in torch's type: `betas` becomes a tuple, as JSON has only lists."""
    return tuple(value) if name == "betas" and isinstance(value, list) else value


def is_plain(value: Any) -> bool:
    """Return whether any pickle reader can read this value: it contains no object, no tensor and
    no deep nesting.
    """
    if isinstance(value, tuple | list):
        return len(value) <= _LONGEST and all(map(_is_single, value))
    return _is_single(value)


def _is_single(value: Any) -> bool:
    return value is None or isinstance(value, bool | int | float | str)


def _dropped_options(training: TrainingState) -> Iterator[Dropped]:
    options = [group.options for group in training.groups]
    if any(each.get("bias_correction") is False for each in options):
        why = "it has bias_correction off, but torch's Adam always corrects"
        yield Dropped("param_groups", why)
    strange = {
        name
        for each in options
        for name, value in each.items()
        if name not in _ANOTHERS and not is_plain(value)
    }
    if strange:
        yield Dropped("param_groups", f"{', '.join(sorted(strange))}: not plain values")
