"""Weights from a Hugging Face directory: each rank reads the rows that it keeps, and no others."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import torch
from torch.distributed.tensor import DTensor

from zerotools.core.boxes import Box
from zerotools.core.errors import BadRequest
from zerotools.core.hub_layout import HubBlock
from zerotoolsd.trainer.memory.tiers import START, MemoryTier
from zerotoolsd.trainer.model.lora import base_name, is_adapter
from zerotoolsd.trainer.model.pretrained import Pretrained
from zerotoolsd.trainer.model.sharding import local_part
from zerotoolsd.trainer.model.stored import StoredReader
from zerotoolsd.trainer.nf4.nf4_linear import packed_buffers, packed_linears


def is_from_seed(name: str, pretrained: Pretrained) -> bool:
    """Return whether a directory has no values for the parameter `name`.

    These are adapters, and weights that the directory lacks.
    """
    return is_adapter(name) or base_name(name) in pretrained.initial


def values_by_rule(model: Any, pretrained: Pretrained | None, *, resumes: bool) -> set[str]:
    """Return the parameters and buffers of `model` that get values only by its initialisation.

    They get none from a directory nor, if the run `resumes`, from a checkpoint.
    """
    buffers = {name for name, _ in model.named_buffers()} - packed_buffers(model)
    state = {name for name, _ in model.named_parameters()} | persistent_buffers(model).keys()
    if pretrained is not None:
        return (buffers - state) | {name for name in state if is_from_seed(name, pretrained)}
    if resumes:
        return buffers - state
    return buffers | state


def load_weights(
    targets: Mapping[str, torch.Tensor], aliases: Mapping[str, str], pretrained: Pretrained
) -> None:
    """Fill the shards `targets`, except for those without values in the directory.

    Values are cast to the shards' type. A tied parameter is read under any of its names.

    Raises:
        BadFile: a safetensors file is damaged.
    """
    with ExitStack() as stack, torch.no_grad():
        reader = StoredReader(pretrained.stored, stack)
        for name, tensor in targets.items():
            if not is_from_seed(name, pretrained):
                _fill(tensor, _blocks(name, aliases, pretrained), reader)


def load_packed(
    model: Any,
    aliases: Mapping[str, str],
    pretrained: Pretrained,
    place: MemoryTier,
    dtype: torch.dtype,
) -> None:
    """Pack the weights of `model`'s packed layers, one at a time, with temporary memory of `place`.

    Each is read completely and first rounded to `dtype`, as transformers' loader does.

    Raises:
        BadFile: a safetensors file is damaged.
    """
    with ExitStack() as stack, torch.no_grad():
        reader = StoredReader(pretrained.stored, stack)
        for name, layer in packed_linears(model):
            weight = place.empty((layer.out_features, layer.in_features), dtype, START)
            _fill(weight, _blocks(f"{name}.weight", aliases, pretrained), reader)
            layer.take(weight)


def persistent_buffers(model: Any) -> dict[str, torch.Tensor]:
    """Return the buffers that belong to the model's state, by name."""
    kept = {}
    for prefix, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                kept[f"{prefix}.{name}" if prefix else name] = buffer
    return kept


def _blocks(name: str, aliases: Mapping[str, str], pretrained: Pretrained) -> tuple[HubBlock, ...]:
    tied = (alias for alias, canonical in aliases.items() if canonical == name)
    for candidate in (name, *tied):
        found = pretrained.blocks.get(base_name(candidate))
        if found is not None:
            return found
    raise BadRequest(f"model.path: the directory has no tensor for {name}")


def _fill(tensor: torch.Tensor, blocks: tuple[HubBlock, ...], reader: StoredReader) -> None:
    local, kept = tensor, Box.whole(tuple(tensor.shape))
    if isinstance(tensor, DTensor):
        local, slices = local_part(tensor)
        kept = Box(tuple(s.start for s in slices), tuple(local.shape))
    for block in blocks:
        part = block.part(kept)
        if part is not None:
            inside = part.box.relative_to(kept)
            place = tuple(slice(a, b) for a, b in zip(inside.start, inside.stop, strict=True))
            local[place].copy_(reader.read(part))
