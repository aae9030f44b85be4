"""Finds the parameters that stay in fp32 in a model that computes in 16 bits.

Two attributes of a transformers model have patterns for the names of these parameters:
`_keep_in_fp32_modules_strict`, and `_keep_in_fp32_modules`, which applies only to fp16.
`from_pretrained(dtype=...)` uses the same attributes. The code of the model relies on fp32 for
these parameters: a router that computes its scores in bf16 chooses other experts. The routers of
Switch Transformers and NLLB-MoE cast their classifier to fp32 in each forward pass, although
neither attribute names this classifier.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from zerotools.core.errors import Unsupported
from zerotools.jobs.jobfile_tables.train import TrainSpec

ALL_KEPT = TrainSpec(batch_size=1, precision="fp16")
"""The training settings for which transformers keeps the most parameters in fp32."""


def kept_in_fp32(model: Any, train: TrainSpec) -> frozenset[str]:
    """Return the names of the parameters and buffers of `model` that stay in fp32 in 16-bit
    training.

    The set is empty for fp32 training, in which all parameters are fp32.
    """
    patterns: set[str] = set()
    if train.precision != "fp32":
        patterns |= set(getattr(model, "_keep_in_fp32_modules_strict", None) or ())
    if train.precision == "fp16":
        patterns |= set(getattr(model, "_keep_in_fp32_modules", None) or ())
    cast = frozenset(_cast_by_routers(model)) if train.precision != "fp32" else frozenset()
    if not train.keep_fp32:
        return frozenset()
    if not patterns:
        return cast
    kept = re.compile("|".join(pattern.replace("*", ".*") for pattern in sorted(patterns)))
    named = ((name, value.is_floating_point()) for name, value in _tensors(model))
    return cast | {name for name, floats in named if floats and kept.search(name)}


def _cast_by_routers(model: nn.Module) -> Iterator[str]:
    """Yield the names of the parameters that routers cast to fp32 in each forward pass."""
    for prefix, module in model.named_modules():
        router = isinstance(getattr(module, "classifier", None), nn.Linear)
        if router and vars(module).get("dtype") is torch.float32:
            yield from (f"{prefix}.classifier.{n}" for n, _ in module.classifier.named_parameters())


def gathered_separately(model: nn.Module, kept: frozenset[str]) -> list[tuple[str, bool]]:
    """Return the modules that FSDP2 must gather separately, so that no gathered buffer contains
    both fp32 and 16-bit parameters.

    Each entry is (name of a module, whether the module stays in fp32); children come before their
    parents.

    Raises:
        Unsupported: a module directly has both fp32 and other parameters.
    """
    found: dict[str, bool] = {}
    for prefix, module in model.named_modules():
        own = _own(prefix, module)
        if not own & kept:
            continue
        if own - kept:
            name, other = min(own & kept), min(own - kept)
            raise Unsupported(
                f"transformers keeps {name} in fp32 but not {other}, although both belong to the "
                "same module: "
                'set train.keep_fp32 = false, or train.precision = "fp32"'
            )
        for child, inner in module.named_children():
            below = {f"{prefix}.{child}.{name}" for name, _ in inner.named_parameters()}
            if below - kept:
                found.setdefault(f"{prefix}.{child}", False)
        found[prefix] = True
    return sorted(found.items(), reverse=True)


def cast_note(model: nn.Module, kept: frozenset[str]) -> Iterator[str]:
    """Yield a note about the parameters in `kept`, for an engine that casts them to 16 bits like
    all other parameters.
    """
    names = [name for name, _ in model.named_parameters() if name in kept]
    if names:
        yield (
            f"note: transformers keeps {len(names)} parameters of this model in fp32, such as "
            f"{names[0]}, but DeepSpeed computes with all parameters in 16 bits"
        )


def _own(prefix: str, module: nn.Module) -> set[str]:
    return {name for name, _ in module.named_parameters(prefix, recurse=False)}


def _tensors(model: nn.Module) -> Iterator[tuple[str, Any]]:
    yield from model.named_parameters()
    yield from model.named_buffers()
