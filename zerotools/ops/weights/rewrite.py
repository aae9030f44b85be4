"""Checkpoints from checkpoints, without touching a byte: select, rename, retype."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadRequest


def select(checkpoint: Checkpoint, keep: Callable[[Key], bool]) -> Checkpoint:
    """Return the tensors with a key that `keep` accepts, in their order, and aliases of names that
    stay."""
    tensors = {key: tensor for key, tensor in checkpoint.tensors.items() if keep(key)}
    names = {key.name for key in tensors}
    aliases = {a: name for a, name in checkpoint.aliases.items() if name in names}
    return replace(checkpoint, tensors=tensors, aliases=aliases)


def rename(checkpoint: Checkpoint, new_name: Callable[[str], str]) -> Checkpoint:
    """Return the same tensors and aliases under other names.

    An alias that becomes the name it is tied to is one no more.

    Raises:
        BadRequest: two different names become one.
    """
    old_names: dict[str, str] = {}

    def renamed(name: str) -> str:
        new = new_name(name)
        if old_names.setdefault(new, name) != name:
            raise BadRequest(f"{old_names[new]} and {name} would both become {new}")
        return new

    tensors = {Key(renamed(key.name), key.role): t for key, t in checkpoint.tensors.items()}
    aliases = {
        renamed(alias): new_name(name)
        for alias, name in checkpoint.aliases.items()
        if new_name(alias) != new_name(name)
    }
    problems = [
        replace(problem, tensor=new_name(problem.tensor))
        if problem.is_unread and problem.tensor is not None
        else problem
        for problem in checkpoint.problems
    ]
    return replace(checkpoint, tensors=tensors, aliases=aliases, problems=problems)


def describe(checkpoint: Checkpoint, dtype_of: Callable[[Key, Tensor], DType]) -> Checkpoint:
    """Return the description of an output: the same tensors in other types, without positions."""
    tensors: Mapping[Key, Tensor] = {
        key: Tensor(dtype_of(key, tensor), tensor.shape, ())
        for key, tensor in checkpoint.tensors.items()
    }
    return replace(checkpoint, tensors=tensors)
