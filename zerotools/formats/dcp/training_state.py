"""Read the training state of a DCP.

    <optimizer>.param_groups.<number>.{params,lr,...}  torch's get_optimizer_state_dict, accelerate
    <optimizer>.param_groups.<fqn>.{lr,...}            flattened (torchtitan): parameters with equal
                                                       options form a group
    lr_scheduler..., train_state.step                  torchtitan
    job.json                                           a zerotools job

`<optimizer>` is a section that `optimizer_sections` found, such as `optimizer`. Each option is
stored as a separate value, which may be a 0-d tensor. The files do not record which weights are
frozen and which are buffers.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Tensor
from zerotools.core.errors import BadFile
from zerotools.core.training_state import (
    LossScale,
    ParamGroup,
    Scalar,
    TrainingState,
    trained_precision,
)
from zerotools.formats.dcp.kept_for_writer import native_of
from zerotools.formats.dcp.name_flat_keys import STATE_ROLE
from zerotools.formats.dcp.several_directories import is_replicated
from zerotools.formats.torch_optimizers import optimizer_of, scalars_of
from zerotools.io.numeric.scalar_tensors import read_scalar

if TYPE_CHECKING:  # few checkpoints are of a job
    from zerotools.runs.training_record import JobRecord

_GROUP = re.compile(r"param_groups\.(?P<name>.+)\.(?P<option>[^.]+)", re.S)
_STATE = re.compile(r"state\.(?P<name>.+)\.(?P<role>[^.]+)", re.S)
_NUMBER = re.compile(r"[0-9]{1,9}")
_LONGEST_OPTION = 16
_SCHEDULERS = ("lr_scheduler", "scheduler")
_OPTIMIZERS = {"adamw": "AdamW", "adam": "Adam", "sgd": "SGD", "muon": "Muon"}


def training_of(checkpoint: Checkpoint) -> TrainingState:
    """Return the training state of a DCP: param groups, numbers such as `step`, and every other
    known value of the run.

    Raises:
        BadFile: a value is damaged, or a number such as `step` is missing.
    """
    record = native_of(checkpoint).job
    if record is not None:
        return _of_job(checkpoint, record)
    groups, unnamed = _groups(checkpoint)
    steps = _value(checkpoint, "train_state.step")
    schedulers = dict(_schedulers(checkpoint))
    buffers = _buffers(checkpoint, groups)
    return TrainingState(
        groups=groups,
        scalars=scalars_of(checkpoint, _plain_scalars(checkpoint)),
        precision=trained_precision(checkpoint),
        optimizer=optimizer_of(groups),
        steps=steps if type(steps) is int else None,
        lr_scheduler=schedulers or None,
        client=_Rest(checkpoint),
        is_ordered=_is_ordered(checkpoint),
        unnamed=unnamed,
        buffers=buffers or frozenset(),
        # A buffer with missing chunks does not look like one.
        knows_frozen=buffers is not None
        and not checkpoint.problems
        and not _has_copies(checkpoint, groups, buffers),
    )


def _of_job(checkpoint: Checkpoint, record: JobRecord) -> TrainingState:
    name = record.optimizer.name
    return TrainingState(
        groups=tuple(
            ParamGroup(group.params, group.options()) for group in record.optimizer.groups
        ),
        scalars=scalars_of(checkpoint, {}),
        precision=checkpoint.origin.precision,
        optimizer=_OPTIMIZERS.get(name, name),
        steps=record.step,
        skipped=record.skipped_steps,
        loss_scaler=_loss_scaler(record),
        samples=record.consumed_sequences,
        client={
            "schedule": dict(record.schedule),
            "seed": record.seed,
            "steps_total": record.steps_total,
        },
    )


def _loss_scaler(record: JobRecord) -> LossScale | None:
    saved = record.loss_scale
    if saved is None:
        return None
    return LossScale(saved.cur_scale, saved.dynamic, saved.options())


def _buffers(checkpoint: Checkpoint, groups: Sequence[ParamGroup]) -> frozenset[str] | None:
    """Return the names of the buffers: weights without optimizer state that several ranks saved as
    one chunk.

    FSDP shards all parameters, including frozen ones, but no buffers. Return None if no trained
    weight is sharded: then buffers cannot be distinguished from frozen parameters.
    """
    trained = {name for group in groups for name in group.params}
    whole: list[str] = []
    is_cut = False
    for key, flat in native_of(checkpoint).flat_keys.items():
        tensor = checkpoint.tensors[key]
        if key.role != "param" or not tensor.shape:
            continue
        if key.name in trained:
            is_cut = is_cut or len(tensor.chunks) > 1
        elif is_replicated(checkpoint, flat, tensor):
            whole.append(key.name)
    return frozenset(whole) if is_cut else None


def _has_copies(
    checkpoint: Checkpoint, groups: Sequence[ParamGroup], buffers: Collection[str]
) -> bool:
    """Return whether a weight without optimizer state may be tied to a weight with optimizer
    state.

    torch saves two tied weights as two tensors and does not record the tie. Only the first element
    of each chunk is compared.
    """
    trained = {name for group in groups for name in group.params}
    weights = {key.name: t for key, t in checkpoint.tensors.items() if key.role == "param"}
    matrices = {n: t for n, t in weights.items() if len(t.shape) > 1 and t.dtype.is_float}
    others = [n for n in matrices if n not in trained and n not in buffers]
    return any(
        _begins_as(checkpoint, matrices[one], matrices[other])
        for one in others
        for other in matrices
        if other in trained
        and (matrices[one].shape, matrices[one].dtype)
        == (matrices[other].shape, matrices[other].dtype)
    )


def _begins_as(checkpoint: Checkpoint, one: Tensor, other: Tensor) -> bool:
    pairs = zip(one.chunks, other.chunks, strict=False)
    try:
        return len(one.chunks) == len(other.chunks) and all(
            a.box == b.box and _first(checkpoint, one, a) == _first(checkpoint, other, b)
            for a, b in pairs
            if not a.box.is_empty
        )
    except BadFile:  # reported when the tensor is read
        return True


def _first(checkpoint: Checkpoint, tensor: Tensor, chunk: Chunk) -> int | float:
    single = Tensor(tensor.dtype, (), (Chunk(Box.whole(()), chunk.file, chunk.offset),))
    return read_scalar(checkpoint.root, single).value


_Options = Mapping[tuple[str, str], dict[str, Any]]
"""The options of each param group, or of each parameter, by (prefix of the optimizer, number of
the group or name of the parameter).
"""


def _groups(checkpoint: Checkpoint) -> tuple[tuple[ParamGroup, ...], dict[str, int]]:
    """Return the param groups in order, with canonical parameter names.

    Also return the numbers of the parameters that have no known name.
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for flat in _keys(checkpoint):
        match = _match(_GROUP, checkpoint, flat)
        if match:
            group = found.setdefault((flat[: match.start()], match["name"]), {})
            group[match["option"]] = _value(checkpoint, flat)
    if any("params" in options for options in found.values()):
        return _numbered(checkpoint, found)
    return _groups_by_options(checkpoint, found), {}


def _is_ordered(checkpoint: Checkpoint) -> bool:
    """Return whether the order of the parameters in each group is known.

    The order is known if the groups list their parameters. In a flattened optimizer, it is known if
    the keys are in the saved order.
    """
    lists = (
        match["option"] == "params"
        for flat in checkpoint.state
        if (match := _match(_GROUP, checkpoint, flat))
    )
    return bool(native_of(checkpoint).paths) or any(lists)


def _match(pattern: re.Pattern[str], checkpoint: Checkpoint, flat: str) -> re.Match[str] | None:
    """Match `pattern` with the part of the flat key `flat` after its prefix. The prefix must be
    that of an optimizer of the model. Return None if the pattern does not match.
    """
    for prefix in native_of(checkpoint).optimizers:
        if flat.startswith(prefix) and (match := pattern.fullmatch(flat, len(prefix))):
            return match
    return None


def _name(checkpoint: Checkpoint, name: str | int) -> str | None:
    """Return the name of a parameter that the optimizer names or numbers; None if it is unknown."""
    if isinstance(name, str) and not _NUMBER.fullmatch(name):
        return name
    numbered = native_of(checkpoint).numbered
    return numbered.get(int(name))


def _numbered(
    checkpoint: Checkpoint, found: _Options
) -> tuple[tuple[ParamGroup, ...], dict[str, int]]:
    groups, unnamed = [], {}
    numbers = (place for place in found if _NUMBER.fullmatch(place[1]))
    for prefix, number in sorted(numbers, key=lambda place: (place[0], int(place[1]))):
        options = found[prefix, number]
        params = options.pop("params", None)
        names = []
        for member in params if isinstance(params, list | tuple) else ():
            if not isinstance(member, str) and type(member) is not int:
                continue
            name = _name(checkpoint, member)
            if name is None:
                name = f"{prefix}state.{member}"
                unnamed[name] = int(member)
            names.append(checkpoint.aliases.get(name, name))
        groups.append(ParamGroup(tuple(names), options))
    return tuple(groups), unnamed


def _groups_by_options(checkpoint: Checkpoint, found: _Options) -> tuple[ParamGroup, ...]:
    groups: dict[Any, tuple[dict[str, Any], list[str]]] = {}
    for (_, name), options in found.items():
        same = frozenset((option, _hashable(value)) for option, value in options.items())
        groups.setdefault(same, (options, []))[1].append(checkpoint.aliases.get(name, name))
    return tuple(ParamGroup(tuple(names), options) for options, names in groups.values())


def _hashable(value: Any) -> Any:
    """Return a hashable value that represents an option's value: equal for equal plain values of
    the same type, and for tuples and lists of them.

    Any other value is equal only to itself, because a comparison could run forever on a crafted
    file.
    """
    if isinstance(value, tuple | list) and len(value) < _LONGEST_OPTION:
        return type(value), tuple(map(_hashable_number, value))
    return _hashable_number(value)


def _hashable_number(value: Any) -> Any:
    plain = value is None or isinstance(value, bool | int | float | str)
    return (type(value), value) if plain else id(value)


def _keys(checkpoint: Checkpoint) -> Iterator[str]:
    """Return all flat keys, in the order of the saved state dict if it was recorded."""
    native = native_of(checkpoint)
    known = (*checkpoint.state, *native.flat_keys.values())
    ordered = dict.fromkeys((*(native.paths or ()), *known))
    there = frozenset(known)
    return (flat for flat in ordered if flat in there)


def _value(checkpoint: Checkpoint, flat: str) -> Any:
    """Return the value of a flat key, which may be stored as a 0-d tensor; None if the value does
    not exist.
    """
    tensor = checkpoint.tensors.get(Key(flat, STATE_ROLE))
    if tensor is not None:
        return None if tensor.shape else read_scalar(checkpoint.root, tensor).value
    return checkpoint.state.get(flat)


def _schedulers(checkpoint: Checkpoint) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of each value of the learning rate schedule; the name is the flat key
    without `lr_scheduler.`.
    """
    for flat in checkpoint.state:
        section, _, rest = flat.partition(".")
        if section in _SCHEDULERS:
            yield rest or section, checkpoint.state[flat]


def _plain_scalars(checkpoint: Checkpoint) -> dict[Key, Scalar]:
    """Return the numbers of optimizer state, such as `step`, that are stored as plain numbers
    instead of tensors.
    """
    found = {}
    for flat in checkpoint.state:
        match = _match(_STATE, checkpoint, flat)
        value = checkpoint.state[flat] if match else None
        if match and isinstance(value, int | float) and not isinstance(value, bool):
            name = _name(checkpoint, match["name"]) or flat.rpartition(".")[0]
            found[Key(name, match["role"])] = Scalar(value)
    return found


class _Rest(Mapping[str, Any]):
    """All values that belong neither to the optimizer nor to the schedule, keyed by flat key. Each
    value is read when it is accessed.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._state = checkpoint.state
        self._keys = dict.fromkeys(
            flat
            for flat in checkpoint.state
            if not (_match(_GROUP, checkpoint, flat) or _match(_STATE, checkpoint, flat))
            and flat.partition(".")[0] not in _SCHEDULERS
        )

    def __len__(self) -> int:
        return len(self._keys)

    def __iter__(self) -> Iterator[str]:
        return iter(self._keys)

    def __getitem__(self, key: str) -> Any:
        if key not in self._keys:
            raise KeyError(key)
        return self._state[key]
