"""`torch.save` files without weights: the states that runs save next to them.

They are recognised by their contents, because their names vary. Sources: transformers/trainer.py
(`_save_rng_state`, training_args.bin), accelerate/checkpointing.py (random_states),
torch/optim/lr_scheduler.py and torch/amp/grad_scaler.py (`state_dict`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from zerotools.core.checkpoint import Opaque
from zerotools.core.errors import BadFile, Unsupported
from zerotools.formats.torchfile.schema.pieces import PartialTensor
from zerotools.io.torchzip.pickle_values import StoredTensor, describe, walk
from zerotools.io.torchzip.tensors import as_tensor

_STATES = (
    ({"python", "numpy"}, "the state of random number generators"),
    ({"random_state", "numpy_random_seed"}, "the state of random number generators"),
    ({"last_epoch", "_step_count"}, "the state of a learning-rate scheduler"),
    ({"growth_factor", "backoff_factor"}, "the state of a loss scaler"),
)
_ELSEWHERE = "name the file or directory of the model"


def refuse_other(tree: Any) -> None:
    """Raise an error for a value that is not a tree of named tensors, by its kind.

    Raises:
        BadFile: it is a state without weights, or not a part of any checkpoint.
        Unsupported: it is a placeholder, or a pickled object.
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
        raise BadFile(f"it holds a {describe(tree)}, not a state dict: {_ELSEWHERE}")
    for keys, what in _STATES:
        if keys <= tree.keys():
            raise BadFile(f"it holds {what} and no weights: {_ELSEWHERE}")


def _pickled(tree: Opaque) -> str:
    what = f"it holds a pickled {describe(tree)}"
    if any(isinstance(value, StoredTensor) for value in walk(tree)):
        return f"{what}, not a state dict; save its state_dict() instead"
    return f"{what}, not weights: {_ELSEWHERE}"


def refuse_no_parameter(weights: Mapping[str, PartialTensor]) -> None:
    """Raise an error if none of the tensors can be a parameter.

    A parameter has at least one dimension, and is floating-point, complex, or packed into bytes of
    two dimensions. Bytes of one dimension are the state of a random number generator.

    Raises:
        BadFile: there are tensors, and all of them are single numbers or wider integers.
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
