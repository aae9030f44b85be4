"""Checkpoints from checkpoints, without touching a byte: select, rename, retype."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadRequest


def select(checkpoint: Checkpoint, keep: Callable[[Key], bool]) -> Checkpoint:
    """The tensors for whose key `keep` is true, in their order; aliases of names that stay."""
    tensors = {key: tensor for key, tensor in checkpoint.tensors.items() if keep(key)}
    names = {key.name for key in tensors}
    aliases = {a: name for a, name in checkpoint.aliases.items() if name in names}
    return replace(checkpoint, tensors=tensors, aliases=aliases)


def rename(checkpoint: Checkpoint, new_name: Callable[[str], str]) -> Checkpoint:
    """The same tensors and aliases under other names.

    Raises:
        BadRequest: two names become one.
    """
    tensors: dict[Key, Tensor] = {}
    old_names: dict[Key, str] = {}
    for key, tensor in checkpoint.tensors.items():
        renamed = Key(new_name(key.name), key.role)
        if renamed in tensors:
            raise BadRequest(f"{old_names[renamed]} and {key.name} would both become {renamed}")
        tensors[renamed] = tensor
        old_names[renamed] = key.name
    aliases = {new_name(a): new_name(name) for a, name in checkpoint.aliases.items()}
    return replace(checkpoint, tensors=tensors, aliases=aliases)


def describe(checkpoint: Checkpoint, dtype_of: Callable[[Key, Tensor], DType]) -> Checkpoint:
    """What an output should hold: the same tensors in other types, lying nowhere yet."""
    tensors: Mapping[Key, Tensor] = {
        key: Tensor(dtype_of(key, tensor), tensor.shape, ())
        for key, tensor in checkpoint.tensors.items()
    }
    return replace(checkpoint, tensors=tensors)
