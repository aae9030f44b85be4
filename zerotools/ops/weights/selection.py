"""Which tensors of a checkpoint are the weights that an export holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.dtypes import BFLOAT16, FLOAT16
from zerotools.core.errors import BadRequest

SIXTEEN_BIT = (FLOAT16, BFLOAT16)
MASTERS, WEIGHTS = "masters", "weights"


def weights_from(checkpoint: Checkpoint, choice: str) -> Checkpoint:
    """Return only parameters and buffers: roles `param` and `buffer`.

    With `masters` a parameter is its fp32 master, or its 16-bit copy if it has no master. With
    `weights` it is the 16-bit copy, or the only tensor of an untrained parameter.

    Raises:
        BadRequest: `weights`, and the checkpoint has masters only.
    """
    if choice == WEIGHTS:
        _require_copies(checkpoint)
    first, second = ("param16", "param") if choice == WEIGHTS else ("param", "param16")
    tensors: dict[Key, Tensor] = {}
    for key, tensor in checkpoint.tensors.items():
        instead = key.role == second and Key(key.name, first) not in checkpoint.tensors
        if key.role in ("buffer", first) or instead:
            tensors[_as_weight(key)] = tensor
    return replace(checkpoint, tensors=tensors)


def _as_weight(key: Key) -> Key:
    return key if key.role == "buffer" else Key(key.name, "param")


def _require_copies(checkpoint: Checkpoint) -> None:
    roles = {key.role for key in checkpoint.tensors}
    wide = any(
        key.role == "param" and tensor.dtype.is_float and tensor.dtype not in SIXTEEN_BIT
        for key, tensor in checkpoint.tensors.items()
    )
    if "param16" not in roles and wide:
        raise BadRequest(
            f"{checkpoint.origin.path} has no 16-bit weights next to its masters; leave --from "
            "weights out"
        )


def matcher(include: Sequence[str], exclude: Sequence[str]) -> Callable[[str], bool]:
    """Return a function that checks whether a name matches one of `include`, if there are any, and
    none of `exclude`."""

    def is_selected(name: str) -> bool:
        if include and not any(fnmatchcase(name, glob) for glob in include):
            return False
        return not any(fnmatchcase(name, glob) for glob in exclude)

    return is_selected


def choose_names(checkpoint: Checkpoint, is_selected: Callable[[str], bool]) -> Checkpoint:
    """Choose the tensors and tied names to keep.

    If a tied name is kept and the name that holds the bytes is not, the tied name holds them.
    """
    tensors = {key: tensor for key, tensor in checkpoint.tensors.items() if is_selected(key.name)}
    holders: dict[str, str] = {key.name: key.name for key in tensors if key.role == "param"}
    aliases: dict[str, str] = {}
    for alias, name in checkpoint.aliases.items():
        tensor = checkpoint.tensors.get(Key(name, "param"))
        if tensor is None or not is_selected(alias):
            continue
        if name in holders:
            aliases[alias] = holders[name]
        else:
            tensors[Key(alias, "param")] = tensor
            holders[name] = alias
    problems = [
        problem
        for problem in checkpoint.problems
        if not problem.is_unread or problem.tensor is None or is_selected(problem.tensor)
    ]
    return replace(checkpoint, tensors=tensors, aliases=aliases, problems=problems)
