"""Recognise torch.save files that hold no complete model, and raise an error that says what they
hold.

Such a file has one rank's part of another program's checkpoint, or state that runs save next to
weights. This module recognises the file by its content, because it may have been renamed. A file
with its original name is read by the format that this name belongs to.

Sources: deepspeed/runtime/zero/stage_1_and_2.py, stage3.py and bf16_optimizer.py (`state_dict`),
deepspeed/runtime/engine.py (`_save_checkpoint`), megatron/training/checkpointing.py
(`generate_state_dict`), megatron/core/optimizer/distrib_optimizer.py (`save_parameter_state`),
transformers/trainer.py (`_save_rng_state`, training_args.bin), accelerate/checkpointing.py
(random_states), torch/optim/lr_scheduler.py and torch/amp/grad_scaler.py (`state_dict`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from zerotools.core.checkpoint import Opaque
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadFile, Unsupported
from zerotools.formats.torchfile.sharded_tensors import PartialTensor
from zerotools.io.torchzip.pickle_values import StoredTensor, kind_text, walk_values
from zerotools.io.torchzip.tree_tensors import as_tensor

_PARTITION = "partition_count"
_FLAT_BUFFERS = (
    "base_optimizer_state",
    "single_partition_of_fp32_groups",
    "single_partition_of_fp32_params",
    "fp32_flat_groups",
)
_BUCKETS = "buckets_coalesced"
_SHAPES, _MODEL_PARALLEL = "param_shapes", "mp_world_size"
_DEGREES = {
    "tensor_model_parallel_size": "TP",
    "pipeline_model_parallel_size": "PP",
    "expert_model_parallel_size": "EP",
}
_FLAT_PARAM = re.compile(r"(.*[._])?_?flat_param(_\d+)?")
_LEVELS = 2


def is_partition(value: Any) -> bool:
    """Return whether a value is one rank's partition of an optimizer's flat buffers, or contains
    one."""
    return _program(value) is not None


def refuse_partition(tree: Any) -> None:
    """Raise an error if a tree has one rank's optimizer state, which contains neither names nor
    shapes of weights.

    Raises:
        Unsupported: the tree has such state; the message says which program saved it, and which
            path to use instead.
    """
    program = _program(tree)
    if program is not None:
        raise Unsupported(
            f"it holds one rank's partition of the optimizer state of {program}, without names "
            "and shapes of weights; pass the directory that has this file and the model's files "
            "under their original names"
        )


def _program(value: Any) -> str | None:
    """Return the name of the program that saved the optimizer partition in a value, or None if the
    value has no partition.
    """
    found = (program for each in _tables(value) if (program := _owner(each)) is not None)
    return next(found, None)


def _tables(value: Any) -> Iterator[Mapping[Any, Any]]:
    """Yield the value and all dicts inside it, each only once."""
    level, seen = [value], set[int]()
    for _ in range(_LEVELS + 1):
        tables = [each for each in level if isinstance(each, Mapping) and id(each) not in seen]
        yield from tables
        seen |= {id(each) for each in tables}
        inner = (part for each in tables for part in each.values())
        level = list({id(part): part for part in inner}.values())


def _owner(table: Mapping[Any, Any]) -> str | None:
    if _PARTITION in table and any(key in table for key in _FLAT_BUFFERS):
        return "DeepSpeed's ZeRO"
    if _BUCKETS in table and any(type(key) is int for key in table):
        return "Megatron's distributed optimizer"
    return None


def refuse_part_of_model(tree: Any, weights: Mapping[str, PartialTensor]) -> None:
    """Raise an error if the weights are only one rank's part of a model, or placeholders without
    elements.

    Raises:
        Unsupported: the weights are of this kind; the message names the evidence.
    """
    flat = next((name for name in weights if _FLAT_PARAM.fullmatch(name)), None)
    if flat is not None:
        raise Unsupported(
            f"it holds FSDP's flat parameters (LOCAL_STATE_DICT): {flat:.200} has shape "
            f"{weights[flat].shape}, and no file lists the weights in it; load it in the run that "
            "saved it, and save with SHARDED_STATE_DICT"
        )
    floats = {name: pieces for name, pieces in weights.items() if pieces.dtype.is_float}
    empty = [name for name, pieces in floats.items() if 0 in pieces.shape]
    has_shapes = isinstance(tree, Mapping) and _SHAPES in tree
    if empty and (has_shapes or len(empty) == len(floats)):
        raise Unsupported(
            f"{count_text(len(empty), 'weight')} of {len(floats)} are empty, such as "
            f"{empty[0]:.200}: "
            "they are placeholders of weights that ZeRO-3 has partitioned; pass the directory with "
            "the *_optim_states.pt of all ranks, or save with save_checkpoint()"
        )
    ranks = ", ".join(_model_parallel(tree))
    if ranks:
        raise Unsupported(
            f"it holds one rank's part of a model divided over {ranks}; pass the directory that "
            "has the files of all ranks under their original names"
        )


def _model_parallel(tree: Any) -> Iterator[str]:
    """Yield a text, such as "4 model-parallel ranks", for each kind of model parallelism that a
    file of DeepSpeed or Megatron records.
    """
    if not isinstance(tree, Mapping):
        return
    ranks = tree.get(_MODEL_PARALLEL)
    if type(ranks) is int and ranks > 1:
        yield f"{ranks} model-parallel ranks"
    args = tree.get("args")
    said = args.state if isinstance(args, Opaque) and isinstance(args.state, Mapping) else {}
    for key, word in _DEGREES.items():
        degree = said.get(key)
        if type(degree) is int and degree > 1:
            yield f"{word} {degree}"


_STATES = (
    ({"python", "numpy"}, "the state of random number generators"),
    ({"random_state", "numpy_random_seed"}, "the state of random number generators"),
    ({"last_epoch", "_step_count"}, "the state of a learning-rate scheduler"),
    ({"growth_factor", "backoff_factor"}, "the state of a loss scaler"),
)
_ELSEWHERE = "name the file or directory of the model"


def refuse_other(tree: Any) -> None:
    """Raise an error that says what a value is, for a value that is not a tree of named tensors.

    Raises:
        BadFile: the value is state without weights, or is not a part of a checkpoint.
        Unsupported: the value is a placeholder, or a pickled object.
    """
    if isinstance(tree, str | bytes):
        raise Unsupported(
            "it holds text instead of tensors, like a placeholder of Azure's Nebula; the tensors "
            "are in Nebula's storage: load them there and save them to files"
        )
    if as_tensor(tree) is not None:
        raise BadFile(f"it holds a single tensor without a name, not a state dict: {_ELSEWHERE}")
    if isinstance(tree, Opaque):
        raise Unsupported(_pickled(tree))
    if not isinstance(tree, dict):
        raise BadFile(f"it holds a {kind_text(tree)}, not a state dict: {_ELSEWHERE}")
    for keys, what in _STATES:
        if keys <= tree.keys():
            raise BadFile(f"it holds {what} and no weights: {_ELSEWHERE}")


def _pickled(tree: Opaque) -> str:
    what = f"it holds a pickled {kind_text(tree)}"
    if any(isinstance(value, StoredTensor) for value in walk_values(tree)):
        return f"{what}, not a state dict; save its state_dict() instead"
    return f"{what}, not weights: {_ELSEWHERE}"


def refuse_no_parameter(weights: Mapping[str, PartialTensor]) -> None:
    """Raise an error if none of the tensors can be a parameter.

    A parameter has at least one dimension. It has a floating-point or complex dtype, or is packed
    into bytes and has two dimensions. A tensor of bytes with one dimension is the state of a random
    number generator.

    Raises:
        BadFile: there are tensors, but none of them can be a parameter.
    """
    if not weights or any(_may_be_parameter(pieces) for pieces in weights.values()):
        return
    some = ", ".join(
        f"{n:.100}: {p.dtype} of shape {p.shape}" for n, p in list(weights.items())[:3]
    )
    raise BadFile(f"it holds no tensor that could be a parameter ({some}): {_ELSEWHERE}")


def _may_be_parameter(pieces: PartialTensor) -> bool:
    dtype = pieces.dtype
    if dtype.name in ("int8", "uint8"):
        return len(pieces.shape) > 1
    return bool(pieces.shape) and (dtype.is_float or dtype.name.startswith("complex"))
