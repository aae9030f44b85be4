"""The layers of a model with weights in 4 bits: those that transformers' loader packs."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Container, Iterator
from importlib.util import find_spec
from typing import Any

from torch import nn

from zerotools.core.errors import BadRequest
from zerotools.core.training_memory import NF4
from zerotools.io.files.packages import REQUIREMENTS, install_command
from zerotoolsd.trainer.nf4.nf4_linear import PackedLinear

SAID = f'lora.frozen_precision = "{NF4}"'


def pack_frozen(model: Any, *, double_quant: bool, kept: Container[str] = ()) -> None:
    """Replace the frozen linear layers of `model` by packed ones.

    The head, layers that share its weight, and those with a `kept` weight are not replaced.

    Raises:
        BadRequest: bitsandbytes is missing, or the model has no such layer.
    """
    if find_spec("bitsandbytes") is None:
        raise BadRequest(
            f"{SAID}: needs bitsandbytes, which {sys.executable} does not have; run "
            f'{install_command(REQUIREMENTS["bitsandbytes"])}, or set "train"'
        )
    found = list(_packable(model, kept))
    if not found:
        raise BadRequest(
            f"{SAID}: bitsandbytes packs linear layers, and {type(model).__name__} has none that "
            'are frozen; set "train"'
        )
    for name, linear in found:
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, PackedLinear(linear, double_quant=double_quant))


def _packable(model: Any, kept: Container[str]) -> Iterator[tuple[str, nn.Linear]]:
    head = model.get_output_embeddings()
    outside = set() if head is None else set(head.modules())  # its base layer, next to an adapter
    uses = Counter(id(p) for _, p in model.named_parameters(remove_duplicate=False))
    for name, module in model.named_modules():
        # Subclasses may compute something else with their weight.
        if type(module) is not nn.Linear or module in outside or module.weight.requires_grad:
            continue
        if uses[id(module.weight)] == 1 and f"{name}.weight" not in kept:
            yield name, module
