"""Lay out one file for a plain torch run to resume from: `model`, `optimizer`, and other known
values.

    {"model": OrderedDict {name: tensor}; tied names are views of one storage,
     "optimizer": {"state": {number: {role: tensor}}, "param_groups": [{..., "params": [number],
                   "param_names": [name]}]},
     "buffer_names": [name], "lr_scheduler", "steps" and the other keys in `training_state`}

The file has only plain values and tensors, so `torch.load(weights_only=True)` can read it.
Parameter numbers, and `step` as a 0-d float32 tensor, are as torch saves them
(torch/optim/optimizer.py, `state_dict`; `_get_scalar_dtype`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any
from zlib import crc32

from zerotools.core.boxes import Box, row_major_strides
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Tensor
from zerotools.core.dtypes import FLOAT32, DType
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.core.target import (
    LOOSE,
    WEIGHTS,
    Checksum,
    Dropped,
    FilePlan,
    LiteralBytes,
    Target,
    extra_roles,
)
from zerotools.core.training_state import ParamGroup, Scalar, TrainingState
from zerotools.formats.torchfile import training_state
from zerotools.formats.torchfile.group_files_by_name import TRAINING
from zerotools.formats.torchfile.open_torch_file import FORMAT, numbered_name
from zerotools.io.huggingface.lay_out_model_directory import (
    ModelFileStyle,
    lay_out_model,
    sidecar_plans,
)
from zerotools.io.torchzip import lay_out_archive as archives
from zerotools.io.torchzip.pickle_values import Ordered, Size, Storage, StoredTensor, walk_values
from zerotools.io.torchzip.pickle_writer import dumps

STEP = "step"


def lay_out_training_file(source: Checkpoint, training: TrainingState, destination: Path) -> Target:
    """Plan one torch file in `destination` with the weights and the optimizer state of `source`.

    The weights are the masters, unchanged, because plain torch has no 16-bit copies.

    Raises:
        BadRequest: there are no weights, the same name belongs to a parameter and a buffer, or
            there is optimizer state but no param groups or no learning rates.
        Unsupported: a parameter has optimizer state but is in no param group.
    """
    drops = _Drops()
    file = OneFile(TRAINING)
    model = _model(source, file)
    tree: dict[str, Any] = {"model": model}
    optimizer = _optimizer(source, training, file, drops)
    if optimizer is not None:
        tree["optimizer"] = optimizer
    tree[training_state.BUFFER_NAMES] = [key.name for key in source.tensors if key.role == "buffer"]
    tree |= _run_values(training, drops)
    plan = file.plan(tree)
    plans = {TRAINING: plan, **sidecar_plans(source, file.tensors.values())}
    checkpoint = Checkpoint(
        root=destination,
        tensors=file.tensors,
        origin=replace(source.origin, format=FORMAT, path=destination, notes=()),
        aliases=source.aliases,
        files={name: each.size for name, each in plans.items()},
    )
    held = {key.role for key in (*file.tensors, *file.known)} | drops.named
    for role in extra_roles(source, training):
        if role not in held:
            drops.add(role, _why(role))
    loose = sorted({key.name for key in source.tensors if key.role == LOOSE})
    if loose:
        drops.add(
            "client", f"tensors that are neither weights nor an optimizer's: {', '.join(loose)}"
        )
    renamed = _renamed(source, training)
    return Target(
        checkpoint,
        plans,
        carried=file.known,
        sources={new: source.tensors[old] for old, new in renamed.items()},
        dropped=tuple(drops.found),
        target_keys={old: (new,) for old, new in renamed.items()},
    )


def _why(role: str) -> str:
    if role == "param16":
        return "plain torch keeps only the masters; the 16-bit weights are casts of them"
    return "no file names the parameters that they belong to"


@dataclass
class _Drops:
    """The parts of the training state that the file cannot contain. Each part is listed only
    once."""

    found: list[Dropped] = field(default_factory=list)

    @property
    def named(self) -> set[str]:
        return {dropped.what for dropped in self.found}

    def add(self, what: str, why: str) -> None:
        if what not in self.named:
            self.found.append(Dropped(what, why))


def _model(source: Checkpoint, file: OneFile) -> Ordered:
    weights: dict[str, Key] = {}
    for key in source.tensors:
        if key.role in WEIGHTS and weights.setdefault(key.name, key) != key:
            raise BadRequest(
                f"{key.name} is the name of a parameter and of a buffer, but a state dict has "
                "each name only once"
            )
    if not weights:
        raise BadRequest(f"{source.origin.path} has no weights to write")
    model = Ordered({name: file.tensor(key, source.tensors[key]) for name, key in weights.items()})
    for alias, name in source.aliases.items():
        if name in weights:
            model.setdefault(alias, model[name])
    return model


def _optimizer(
    source: Checkpoint, training: TrainingState, file: OneFile, drops: _Drops
) -> dict[str, Any] | None:
    """Return the state dict of a torch optimizer, with parameters numbered in the order of the
    param groups; None if there are no param groups.
    """
    state = _state_by_name(source, training)
    if not training.groups:
        if state:
            roles = ", ".join(sorted({role for entry in state.values() for role in entry}))
            raise BadRequest(
                f"{source.origin.path} has optimizer state ({roles}) but no param groups, which "
                "torch needs to number it: pass --lr and the other options of the optimizer"
            )
        return None
    _check_grouped(source, training, state)
    numbers = count()
    groups, entries = [], {}
    steps = _common_steps(training)
    called = _names_in_file(training)
    for group in training.groups:
        numbered = {next(numbers): name for name in group.params}
        groups.append(_options(group, drops) | _members(numbered, source))
        for number, name in numbered.items():
            if name in state:
                entries[number] = _entry(called[name], state[name], steps.get(name), file)
    return {"state": entries, "param_groups": groups}


def _names_in_file(training: TrainingState) -> dict[str, str]:
    """Return {parameter in the param groups: the name that the reader of this file will give it}.

    If one parameter has no name, the file contains no names, and the reader makes each name from a
    number.
    """
    members = [name for group in training.groups for name in group.params]
    if training.unnamed.keys().isdisjoint(members):
        return {name: name for name in members}
    return {name: numbered_name(number) for number, name in enumerate(members)}


def _renamed(source: Checkpoint, training: TrainingState) -> dict[Key, Key]:
    """Return {key in the source: other key in the file} for the optimizer state."""
    called = _names_in_file(training)
    keys = (key for key in source.tensors if key.role not in (*WEIGHTS, "param16", LOOSE))
    renamed = {key: Key(called.get(key.name, key.name), key.role) for key in keys}
    return {old: new for old, new in renamed.items() if old != new}


def _check_grouped(source: Checkpoint, training: TrainingState, state: Iterable[str]) -> None:
    members = {name for group in training.groups for name in group.params}
    stray = [name for name in state if name not in members]
    if stray:
        raise Unsupported(
            f"{source.origin.path}: {stray[0]} and {len(stray) - 1} others have optimizer state "
            "but are in no param group, so torch has no number for them"
        )
    if any("lr" not in group.options for group in training.groups):
        raise BadRequest(
            f"{source.origin.path} has param groups without a learning rate, but torch needs one: "
            "pass --lr and the other options of the optimizer"
        )


def _state_by_name(
    source: Checkpoint, training: TrainingState
) -> dict[str, dict[str, Tensor | Scalar]]:
    known = {key.name for key in source.tensors if key.role == "param"}
    known |= {name for group in training.groups for name in group.params}
    found: dict[str, dict[str, Tensor | Scalar]] = {}
    held: Mapping[Key, Tensor | Scalar] = {**training.scalars, **source.tensors}
    for key, value in held.items():
        if key.name in known and key.role not in (*WEIGHTS, "param16", LOOSE):
            found.setdefault(key.name, {})[key.role] = value
    return found


def _common_steps(training: TrainingState) -> dict[str, float]:
    """Return the step of each parameter, keyed by name, for param groups in which all recorded
    steps are equal. FSDP1 stores only one step for all parameters that it joined.
    """
    steps: dict[str, float] = {}
    for group in training.groups:
        own = (training.scalars.get(Key(name, STEP)) for name in group.params)
        values = {scalar.value for scalar in own if scalar is not None}
        if len(values) == 1:
            steps |= dict.fromkeys(group.params, values.pop())
    return steps


def _entry(
    name: str, held: Mapping[str, Tensor | Scalar], step: float | None, file: OneFile
) -> dict[str, Any]:
    entry: dict[str, Any] = {}
    if STEP not in held and step is not None:
        entry[STEP] = file.number(Key(name, STEP), step)
    for role, value in held.items():
        if isinstance(value, Tensor):
            entry[role] = file.tensor(Key(name, role), value)
        elif role == STEP:
            entry[role] = file.number(Key(name, role), value.value)
        else:
            entry[role] = value.value
    return entry


def _options(group: ParamGroup, drops: _Drops) -> dict[str, Any]:
    kept = {name: value for name, value in group.options.items() if is_plain(value)}
    foreign = sorted(group.options.keys() - kept.keys())
    if foreign:
        drops.add("param_groups", f"their options {', '.join(foreign)} are not plain values")
    return kept


def _members(numbered: Mapping[int, str], source: Checkpoint) -> dict[str, Any]:
    """Return `params`, the parameter numbers of a param group, and `param_names` if all names are
    known. `param_names` is optional in a torch file.
    """
    members: dict[str, Any] = {"params": list(numbered)}
    if all(Key(name, "param") in source.tensors for name in numbered.values()):
        members["param_names"] = list(numbered.values())
    return members


def _run_values(training: TrainingState, drops: _Drops) -> dict[str, Any]:
    """Return the values of the run that have a known meaning and are stored next to the model and
    the optimizer. Values that are not plain are dropped.
    """
    scale = training.loss_scale
    values: dict[str, Any] = {
        training_state.MARK: training_state.VERSION,
        training_state.FROZEN: sorted(training.frozen) or None,
        training_state.PRECISION: training.precision and training.precision.name,
        training_state.OPTIMIZER: training.optimizer,
        training_state.STEPS: training.steps,
        training_state.SKIPPED: training.skipped,
        training_state.SAMPLES: training.samples,
        training_state.LOSS_SCALE: scale
        and {"scale": scale.scale, "dynamic": scale.dynamic, **scale.options},
        training_state.SCHEDULER: training.lr_scheduler,
    }
    for name, value in values.items():
        if not is_plain(value):
            drops.add(name, "it holds objects that are not plain values")
    client = {name: value for name, value in training.client.items() if is_plain(value)}
    foreign = sorted(training.client.keys() - client.keys())
    if foreign:
        drops.add("client", f"{', '.join(foreign)} hold objects that are not plain values")
    if training.ds_config is not None:
        drops.add("ds_config", "plain torch does not use it")
    kept = {n: value for n, value in values.items() if value is not None and is_plain(value)}
    return kept | ({training_state.CLIENT: client} if client else {})


@dataclass
class OneFile:
    """The storages of the file `name`, in order. Each storage holds a tensor of the source or a
    known number.
    """

    name: str
    tensors: dict[Key, Tensor] = field(default_factory=dict)
    known: dict[Key, Tensor] = field(default_factory=dict)
    _order: list[tuple[Key, Tensor, bytes | None]] = field(default_factory=list)

    def tensor(self, key: Key, tensor: Tensor) -> StoredTensor:
        return self._add(key, tensor, None)

    def number(self, key: Key, value: float) -> StoredTensor:
        """Add a number to the file, and return it as a 0-d float32 tensor."""
        return self._add(key, Tensor(FLOAT32, (), ()), struct.pack("<f", value))

    def _add(self, key: Key, tensor: Tensor, data: bytes | None) -> StoredTensor:
        self._order.append((key, tensor, data))
        return stored_tensor(str(len(self._order) - 1), tensor)

    def plan(self, tree: Mapping[str, Any]) -> FilePlan:
        """Return the plan of the file with the tree `tree`. After this call, `tensors` and `known`
        have the position of every tensor in the file.
        """
        crcs = {n: crc32(data) for n, (_, _, data) in enumerate(self._order) if data is not None}
        layout = archives.lay_out(dumps(tree), [t.nbytes for _, t, _ in self._order], crcs)
        literals = [LiteralBytes(at, data) for at, data in layout.literals]
        checksums = []
        payloads = iter(layout.payloads)
        for key, tensor, data in self._order:
            payload = next(payloads) if tensor.nbytes else None
            at = payload.offset if payload is not None else 0
            placed = Tensor(
                tensor.dtype, tensor.shape, (Chunk(Box.whole(tensor.shape), self.name, at),)
            )
            if data is not None:
                literals.append(LiteralBytes(at, data))
                self.known[key] = placed
                continue
            self.tensors[key] = placed
            if payload is not None:
                checksums.append(Checksum(at, payload.length, payload.crc_at))
        return FilePlan(layout.length, literals, checksums=checksums)


_PLAIN = (type(None), bool, int, float, str, bytes, list, tuple, dict, Size, DType)


def is_plain(value: Any) -> bool:
    """Return whether a tree contains only numbers, text, bytes, dtypes, and containers of
    these.
    """
    return all(
        type(part) in _PLAIN or (type(part) is Ordered and part.attributes is None)
        for part in walk_values(value)
    )


# Lay out a Hugging Face model directory with weights in torch.save files: `pytorch_model*.bin`.
#
# Each file is an OrderedDict {name: tensor}, and each tensor has a separate storage, so that
# `torch.load(weights_only=True)` and `from_pretrained` can read the file.

INDEX = "pytorch_model.bin.index.json"


def lay_out(source: Checkpoint, destination: Path, *, max_shard_bytes: int) -> Target:
    """Plan torch files with the weights of `source` in `destination`, under their names and in
    their dtypes.

    The roles must be `param` or `buffer`; the caller selects and casts the tensors. Tied names are
    left out. A tensor larger than `max_shard_bytes` gets a file of its own.

    Raises:
        BadRequest: there is nothing to write, a tensor has another role, two tensors have the same
            name, or the shard size is not valid.
    """
    style = ModelFileStyle("torchfile", "pytorch_model", ".bin", INDEX, _archive)
    return lay_out_model(source, destination, style, max_shard_bytes=max_shard_bytes)


def _archive(shard: Mapping[str, Tensor]) -> tuple[FilePlan, dict[str, int]]:
    """Return the plan of one file, and the byte offset of each tensor in it; the offset of an
    empty tensor is 0.
    """
    tree = Ordered(
        {
            name: stored_tensor(str(number), tensor)
            for number, (name, tensor) in enumerate(shard.items())
        }
    )
    layout = archives.lay_out(dumps(tree), [tensor.nbytes for tensor in shard.values()])
    full = [name for name, tensor in shard.items() if tensor.nbytes]
    offsets = dict.fromkeys(shard, 0)
    offsets |= {name: at.offset for name, at in zip(full, layout.payloads, strict=True)}
    plan = FilePlan(
        layout.length,
        literals=[LiteralBytes(at, data) for at, data in layout.literals],
        checksums=[Checksum(at.offset, at.length, at.crc_at) for at in layout.payloads],
    )
    return plan, offsets


def stored_tensor(key: str, tensor: Tensor) -> StoredTensor:
    """Return a contiguous tensor that is the only tensor in the storage with the key `key`.

    If torch has no storage class for the dtype, the storage is untyped.
    """
    dtype = tensor.dtype
    typed = dtype.torch_storage is not None
    storage = Storage(key, dtype if typed else None, tensor.numel if typed else tensor.nbytes)
    return StoredTensor(storage, dtype, 0, tensor.shape, row_major_strides(tensor.shape))
