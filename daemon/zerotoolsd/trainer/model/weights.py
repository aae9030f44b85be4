"""Weights from a Hugging Face directory: each rank reads the rows that it keeps, and no others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch.distributed.tensor import DTensor

from zerotools.core.errors import BadFile, BadRequest
from zerotoolsd.trainer.model.lora import base_name, is_adapter
from zerotoolsd.trainer.model.sharding import local_part

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_TRAINABLE = ("F64", "F32", "F16", "BF16")
"""What safetensors calls the types of weights that are not quantised."""


def load_weights(
    targets: Mapping[str, torch.Tensor], aliases: Mapping[str, str], directory: Path
) -> list[str]:
    """Fill the shards `targets` from `directory`; names of tensors there that are not in them.

    Values are cast to the shards' type. A tied parameter is read under any of its names.

    Raises:
        BadRequest: there are no safetensors, or a tensor is missing or of another shape.
        BadFile: a safetensors file is damaged.
    """
    files = tensor_files(directory)
    names = dict.fromkeys(files)
    with ExitStack() as stack, torch.no_grad():
        opened: dict[Path, Any] = {}
        for name, tensor in targets.items():
            if is_adapter(name):
                continue
            stored = _stored_name(name, aliases, files)
            if stored is None:
                raise BadRequest(f"model.path: {directory} has no tensor {name}")
            path = files[stored]
            if path not in opened:
                opened[path] = stack.enter_context(_open(path))
            _copy_rows(tensor, opened[path].get_slice(stored), f"{path}: {stored}")
            names.pop(stored, None)
    known = set(aliases)
    return [name for name in names if name not in known]


def tensor_files(directory: Path) -> dict[str, Path]:
    """Which safetensors file holds which tensor.

    Raises:
        BadRequest: `directory` holds no safetensors.
        BadFile: the index or a file is damaged.
    """
    index = directory / INDEX
    if index.is_file():
        try:
            tree = json.loads(index.read_bytes())["weight_map"]
            return {str(name): directory / Path(file).name for name, file in tree.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise BadFile(f"{index} is not a safetensors index: {error}") from None
    single = directory / SINGLE
    if not single.is_file():
        raise BadRequest(f"model.path: {directory} has neither {SINGLE} nor {INDEX}")
    with _open(single) as file:
        return dict.fromkeys(file.keys(), single)


def persistent_buffers(model: Any) -> dict[str, torch.Tensor]:
    """The buffers that belong to the model's state, by name."""
    kept = {}
    for prefix, module in model.named_modules():
        for name, buffer in module.named_buffers(recurse=False):
            if name not in module._non_persistent_buffers_set:
                kept[f"{prefix}.{name}" if prefix else name] = buffer
    return kept


def _open(path: Path) -> Any:
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise BadFile(f"model.path: {path} cannot be read: {error}") from None


def _stored_name(name: str, aliases: Mapping[str, str], files: Mapping[str, Path]) -> str | None:
    tied = (alias for alias, canonical in aliases.items() if canonical == name)
    names = [name, base_name(name), *tied]
    return next((candidate for candidate in names if candidate in files), None)


def _copy_rows(tensor: torch.Tensor, stored: Any, source: str) -> None:
    shape = tuple(stored.get_shape())
    if shape != tuple(tensor.shape):
        raise BadRequest(
            f"{source} has shape {list(shape)} and the model's config says {list(tensor.shape)}"
        )
    if tensor.is_floating_point() and stored.get_dtype() not in _TRAINABLE:
        raise BadRequest(
            f"{source} is {stored.get_dtype()}: quantised weights cannot be trained; take the "
            "model in 16 or 32 bits"
        )
    if not isinstance(tensor, DTensor):
        tensor.copy_(stored[...])
        return
    local, box = local_part(tensor)
    if local.numel():
        local.copy_(stored[box])
