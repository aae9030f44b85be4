"""Loads the adapters (LoRA) with which a run starts, from a directory that peft saved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from zerotools import formats
from zerotools.core.adapter_tensor_names import DEFAULT, PREFIX, adapter_tensors
from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile_tables.lora import LoraSpec
from zerotools.ops.weights.adapter_config import read_adapter_config, scale_of
from zerotoolsd.trainer.model.add_lora_adapters import is_adapter
from zerotoolsd.trainer.model.fill_shards import BoxReader, fill_shard

_SCALES_AGREE = 1e-6


@dataclass(frozen=True)
class StoredAdapter:
    """The tensors of an adapter in a peft directory.

    `keys` maps each parameter name of the job to the key of its tensor in `checkpoint`.
    """

    checkpoint: Checkpoint
    keys: Mapping[str, Key]


def read_adapter(spec: LoraSpec, model: Any) -> StoredAdapter:
    """Read the adapter in `spec.path`, check that it fits the adapters of `model`, and return it.

    Raises:
        BadRequest: the adapter is of another base model; or its rank, its scale or its layers
            differ.
        BadFile: a file of the adapter is damaged.
        Unsupported: the adapter is of a kind that zerotools does not support.
    """
    path = Path(spec.path or "")
    config = read_adapter_config(path)
    checkpoint = formats.read(path)
    where = f"lora.path = {path}"
    if config.get("r") != spec.rank:
        raise BadRequest(
            f"{where}: is an adapter of rank {config.get('r')!r:.40}, but lora.rank is "
            f"{spec.rank}; set lora.rank to the rank of the adapter"
        )
    found = {each.saved: each for each in adapter_tensors(checkpoint.tensors, None, path)}
    wanted = {
        _saved(name): (name, tuple(parameter.shape))
        for name, parameter in model.named_parameters()
        if is_adapter(name)
    }
    for some, others, what in (
        (wanted, found, "has no {}, which the job trains"),
        (found, wanted, "has {}, which the job does not train"),
    ):
        lost = [name for name in some if name not in others]
        if lost:
            raise BadRequest(
                f"{where}: {what.format(lost[0])}; set lora.target_modules to the layers of the "
                "adapter, or set model.path to the base model of the adapter"
            )
    for saved, (_, shape) in wanted.items():
        stored = checkpoint.tensors[found[saved].key].shape
        if stored != shape:
            raise BadRequest(
                f"{where}: {saved} has shape {list(stored)} there and {list(shape)} in the "
                "job's model: it is an adapter of another base model; set model.path to that "
                "model"
            )
        scale = scale_of(config, found[saved].module)
        if abs(scale - spec.scale) > _SCALES_AGREE:
            raise BadRequest(
                f"{where}: scales its adapters by {scale:g}, but the job scales them by "
                f"{spec.scale:g}; set "
                f"lora.alpha = {scale * (spec.rank or 1):g}"
            )
    keys = {name: found[saved].key for saved, (name, _) in wanted.items()}
    return StoredAdapter(checkpoint, keys)


def fill_adapter(adapter: StoredAdapter, targets: Mapping[str, torch.Tensor]) -> None:
    """Copy the values of `adapter` into the shards `targets` (parameter name -> tensor)."""
    tensors = adapter.checkpoint.tensors
    with BoxReader(adapter.checkpoint) as reader, torch.no_grad():
        for name, key in adapter.keys.items():
            fill_shard(targets[name], key, tensors[key], reader)


def _saved(name: str) -> str:
    """Return the name of parameter `name` in a file that peft saves."""
    return PREFIX + name.replace(f".{DEFAULT}.", ".")
