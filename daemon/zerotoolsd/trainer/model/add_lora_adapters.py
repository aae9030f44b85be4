"""Adds low-rank adapters (LoRA) to a model with peft, and finds their parameters."""

from __future__ import annotations

import importlib.util
import math
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from zerotools.core.errors import BadRequest, Unsupported
from zerotools.core.training_memory_layout import MemoryLayout
from zerotools.io.files.optional_packages import REQUIREMENTS, install_command
from zerotools.jobs.jobfile_tables.lora import LoraSpec

BASE = ".base_layer."
GATHERS_TWO_TYPES = (2, 9)
"""The first known release of torch in which FSDP2 can gather weights of two dtypes together."""
_A, _B = ".lora_A.", ".lora_B."


def add_adapters(model: Any, spec: LoraSpec) -> None:
    """Add the adapters of `spec` to `model`, and freeze all other weights.

    Raises:
        BadRequest: peft is missing, finds no layer for the adapters, or a layer is not linear.
    """
    if importlib.util.find_spec("peft") is None:
        raise BadRequest(
            f"lora.rank = {spec.rank}: adapters need peft, which {sys.executable} does not have; "
            f"run {install_command(REQUIREMENTS['peft'])}"
        )
    from peft import LoraConfig, inject_adapter_in_model  # only jobs with adapters pay for it

    config = LoraConfig(
        r=spec.rank,
        lora_alpha=spec.scale * (spec.rank or 1),
        lora_dropout=spec.dropout,
        target_modules=list(spec.target_modules) or None,
    )
    try:
        with warnings.catch_warnings():
            # It sees itself how a layer keeps its weight; tied weights are refused here.
            warnings.filterwarnings("ignore", "fan_in_fan_out is set|Model has `tie_word")
            inject_adapter_in_model(config, model, low_cpu_mem_usage=True)
    except ValueError as error:
        line = str(error).strip().splitlines()[0]
        raise BadRequest(f"lora.target_modules: {line}") from None
    _refuse_others(model)


def _refuse_others(model: nn.Module) -> None:
    """Raise BadRequest if an adapter is on a layer that is not linear.

    peft also adapts embeddings and convolutions. Such adapters have other parameter names, and
    their result is not the weight plus a product.
    """
    from peft.tuners.lora import Linear, LoraLayer

    for name, module in model.named_modules():
        if isinstance(module, LoraLayer) and not isinstance(module, Linear):
            raise BadRequest(
                f"lora.target_modules: {name} is of type {type(module).__name__}, but only linear "
                "layers can have adapters; remove this name"
            )


def check_frozen_type(layout: MemoryLayout, torch_version: str = str(torch.__version__)) -> None:
    """Check that this torch can gather 16-bit frozen weights together with fp32 adapters, if
    needed.

    Raises:
        Unsupported: torch is too old.
    """
    release = tuple(int(part) for part in torch_version.split(".")[:2])
    if layout.frozen_dtype != layout.weights_dtype and release < GATHERS_TWO_TYPES:
        raise Unsupported(
            f'offload.params = "cpu": torch {torch_version} cannot gather frozen weights in '
            f"{layout.frozen_dtype} together with adapters in {layout.weights_dtype}; set "
            'lora.frozen_precision = "fp32", or use torch '
            f"{'.'.join(map(str, GATHERS_TWO_TYPES))} or later"
        )


def fan_in_fan_out(model: nn.Module) -> tuple[str, ...]:
    """Return the names of the layers with adapters for which the weight is stored transposed, as in
    GPT-2.
    """
    return tuple(
        name for name, module in model.named_modules() if getattr(module, "fan_in_fan_out", False)
    )


def refuse_tied(aliases: Mapping[str, str]) -> None:
    """Check that no weight with an adapter is shared with another layer. Such an adapter could not
    be merged into the weight.

    Raises:
        BadRequest: a layer with an adapter shares its weight.
    """
    for alias, name in aliases.items():
        for one, other in ((alias, name), (name, alias)):
            if BASE in one:
                raise BadRequest(
                    f"lora.target_modules: {one.partition(BASE)[0]} shares its weight with "
                    f"{base_name(other)}, so an adapter cannot be added to it; remove this name"
                )


def is_adapter(name: str) -> bool:
    """Return whether the parameter `name` belongs to an adapter."""
    return _A in name or _B in name


def init_adapter(name: str, module: nn.Module) -> None:
    """Initialise `module`, the A or B part of an adapter, with the values that peft uses.

    B is zero, so that the adapter has no effect at first.
    """
    for parameter in module.parameters(recurse=False):
        if _B in name:
            nn.init.zeros_(parameter)
        else:
            nn.init.kaiming_uniform_(parameter, a=math.sqrt(5))


def base_module(name: str) -> str:
    """Return the name of the module `name` in the model without adapters."""
    return f"{name}.".replace(BASE, ".")[:-1]


def base_name(name: str) -> str:
    """Return the name of the parameter `name` in the model without adapters."""
    return name.replace(BASE, ".")
