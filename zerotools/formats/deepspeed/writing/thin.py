"""Remove the optimizer state from DeepSpeed's files.

The result depends on the checkpoint and on the part to keep (`Keep`: `weights` or `masters`):

    stages 1 and 2, `weights`     the model files stay; the optimizer files are deleted
    stages 1 and 2, `masters`     the optimizer files stay, with their masters but without `state`
    stage 3, BF16_Optimizer       always as `masters`: at stage 3 no other file has the weights, and
                                  BF16_Optimizer has fp32 weights only in the optimizer files
    without ZeRO, `weights`       the model file stays, without its `optimizer`
    without ZeRO, `masters`       the model file stays, without the `state` in its `optimizer`

In torch's state dict, the param groups stay, so that they can be inspected, but the key `state` is
removed. torch would silently load an empty `state`, and the run would continue with moments of
zero. Without the key, DeepSpeed fails instead.

Source: torch `optim/optimizer.py`, `load_state_dict`; DeepSpeed `runtime/zero/stage_1_and_2.py`,
`stage3.py`, `bf16_optimizer.py`: `load_state_dict`; `runtime/engine.py`, `load_checkpoint`, which
needs no optimizer file with `load_optimizer_states=False`, except at stage 3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.target import FilePlan
from zerotools.core.thinning_changes import Keep, Thinning
from zerotools.formats.deepspeed.partitioning.assemble_mp_rank import MpShard
from zerotools.formats.deepspeed.partitioning.kept_for_writer import native_of
from zerotools.formats.deepspeed.partitioning.read_nvme_swap_files import swap_files
from zerotools.formats.deepspeed.schema import state_dict_keys
from zerotools.formats.deepspeed.schema.optim_states import STAGE_1_AND_2, OptimStates
from zerotools.io.torchzip.pt_file import repacked_file

STAYS = ("param", "param16", "buffer")
"""The roles that are not optimizer state."""
_DEEPEST = 4


def masters_alone(source: Checkpoint) -> Thinning:
    """Plan how to remove the optimizer state of `source` but keep its masters."""
    files: dict[str, FilePlan] = {}
    removed: list[str] = []
    for mp_shard in native_of(source).mp_shards:
        files |= _model_files(mp_shard, Keep.MASTERS)
        for optim in _present(mp_shard):
            masters = {partition.file for partition in optim.masters}
            removed += (name for name in swap_files(optim) if name not in masters)
            tree = _without_state_of(optim)
            if tree is not None:
                files[optim.file.name] = repacked_file(optim.file, tree)
    kept = {key: key for key in source.tensors if key.role in STAYS}
    return Thinning(Keep.MASTERS, kept, frozenset(removed), files)


def weights_alone(source: Checkpoint, after: Checkpoint) -> Thinning | None:
    """Plan how to remove the optimizer files of `source`, so that only weights stay.

    `after` is the result of reading `source` without its optimizer files. Return None if some
    weights are only in the optimizer files.
    """
    kept: dict[Key, Key] = {}
    for key, tensor in after.tensors.items():
        held = _same(source, key, tensor)
        if held is None or (tensor.numel and not tensor.chunks):
            return None
        kept[key] = held
    lost = {key.name for key in source.tensors} - {key.name for key in kept} - after.aliases.keys()
    if lost:
        return None
    files: dict[str, FilePlan] = {}
    removed = []
    for mp_shard in native_of(source).mp_shards:
        files |= _model_files(mp_shard, Keep.WEIGHTS)
        removed += [optim.file.name for optim in _present(mp_shard)]
    return Thinning(Keep.WEIGHTS, kept, frozenset(removed), files)


def may_have_weights_in_model_files(source: Checkpoint) -> bool:
    """Return whether the model files may have the weights: True at stages 1 and 2, and without
    ZeRO.
    """
    kinds = {optim.kind for shard in native_of(source).mp_shards for optim in _present(shard)}
    return kinds <= {STAGE_1_AND_2}


def _present(mp_shard: MpShard) -> Iterator[OptimStates]:
    return (optim for optim in mp_shard.optim_states if optim is not None)


def _same(source: Checkpoint, key: Key, tensor: Tensor) -> Key | None:
    """Return the key that a kept tensor has in the source, or None if the source lacks the tensor.
    A 16-bit weight that has a master in the source has the role `param16` there.
    """
    for role in ("param16", "param") if key.role == "param" else (key.role,):
        held = source.tensors.get(Key(key.name, role))
        if held is not None and (held.dtype, held.shape) == (tensor.dtype, tensor.shape):
            return Key(key.name, role)
    return None


def _model_files(mp_shard: MpShard, keep: Keep) -> dict[str, FilePlan]:
    """Plan a new model file for a run without ZeRO, where the model file contains the optimizer."""
    saved, file = mp_shard.model.optimizer, mp_shard.model.file
    if saved is None:
        return {}
    left = None if keep == Keep.WEIGHTS else without_state(saved)
    if left is saved:
        return {}
    return {file.name: repacked_file(file, {**file.tree, state_dict_keys.OPTIMIZER: left})}


def _without_state_of(optim: OptimStates) -> Any:
    """Return the tree of an optimizer file with masters but without state; None if it has no
    state.
    """
    outer = optim.file.tree
    saved: Mapping[str, Any] = optim.fields.tree
    left = without_state(saved)
    base = saved.get(state_dict_keys.BASE_STATE)
    if isinstance(base, list) and any(base):  # elastic; DeepSpeed fails without the step
        left = {
            name: value for name, value in saved.items() if name != state_dict_keys.ELASTIC_STEP
        }
        left[state_dict_keys.BASE_STATE] = [{} for _ in base]
    return None if left is saved else {**outer, state_dict_keys.STATE_DICT: left}


def without_state(saved: Any, depth: int = _DEEPEST) -> Any:
    """Return a tree of dicts without the `state` of any torch optimizer in it. If the tree has no
    such state, return the same object.
    """
    if not isinstance(saved, dict) or not depth:
        return saved
    if saved.get(state_dict_keys.STATE) and state_dict_keys.PARAM_GROUPS in saved:
        return {name: value for name, value in saved.items() if name != state_dict_keys.STATE}
    left = {name: without_state(value, depth - 1) for name, value in saved.items()}
    return left if any(left[name] is not saved[name] for name in saved) else saved
