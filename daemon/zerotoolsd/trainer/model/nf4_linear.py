"""Frozen linear layers with weights in 4 bits (nf4), which bitsandbytes packs and unpacks.

nf4 (Dettmers et al. 2023) stores each element as one of 16 numbers. Each block of 64 elements has a
scale, by which the numbers of the block are multiplied. For a matrix product, a layer unpacks its
weight to the dtype of the input, and frees the unpacked weight afterwards. This is done in the
forward pass, and again in the backward pass for the gradient of the input.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Container, Iterator
from functools import cache
from importlib.util import find_spec
from math import ceil
from typing import Any

import torch
from torch import nn

from zerotools.core.errors import BadRequest
from zerotools.core.training_memory_layout import NF4, NF4_BLOCK, NF4_SCALES_BLOCK
from zerotools.io.files.optional_packages import REQUIREMENTS, install_command

PACKED, SCALES, SCALE_SCALES, SCALE_MEAN = "packed", "scales", "scale_scales", "scale_mean"


class PackedLinear(nn.Module):  # type: ignore[misc] # torch's types are not followed
    """The layer `linear` with its weight, `[out_features, in_features]`, in 4 bits, and an
    unchanged bias.

    The buffers are `packed`, uint8 `[elements / 2, 1]`, and `scales`, fp32, one for each block of
    64 elements. With `double_quant`, the scales are stored as uint8, after `scale_mean` was
    subtracted, and each block of 256 scales has one number in `scale_scales`. Checkpoints do not
    contain these buffers.
    """

    def __init__(self, linear: nn.Linear, *, double_quant: bool) -> None:
        super().__init__()
        self.in_features: int = linear.in_features
        self.out_features: int = linear.out_features
        self.bias = linear.bias
        self.double_quant = double_quant
        count = ceil(self.numel / NF4_BLOCK)
        self._add(PACKED, (ceil(self.numel / 2), 1), torch.uint8, linear)
        self._add(SCALES, (count,), torch.uint8 if double_quant else torch.float32, linear)
        if double_quant:
            self._add(SCALE_SCALES, (ceil(count / NF4_SCALES_BLOCK),), torch.float32, linear)
            self._add(SCALE_MEAN, (), torch.float32, linear)

    def _add(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, linear: nn.Linear
    ) -> None:
        empty = torch.empty(shape, dtype=dtype, device=linear.weight.device)
        self.register_buffer(name, empty, persistent=False)

    @property
    def numel(self) -> int:
        """The number of elements of the weight."""
        return self.in_features * self.out_features

    def pack_weight(self, weight: torch.Tensor) -> None:
        """Pack `weight` and store it.

        `weight` is `[out_features, in_features]`. It must be fp32, fp16 or bf16, and on the device
        of the buffers.
        """
        functional = _functional()
        packed, state = functional.quantize_4bit(
            weight.contiguous(),
            blocksize=NF4_BLOCK,
            compress_statistics=self.double_quant,
            quant_type=NF4,
        )
        found = {PACKED: packed, SCALES: state.absmax}
        if self.double_quant:
            found |= {SCALE_SCALES: state.state2.absmax, SCALE_MEAN: state.offset}
        for name, value in found.items():
            self.get_buffer(name).copy_(value)

    def weight_in(self, dtype: torch.dtype) -> torch.Tensor:
        """Unpack the weight, `[out_features, in_features]`, to the `dtype`."""
        functional, scales = _functional(), self.get_buffer(SCALES)
        if self.double_quant:
            scales = functional.dequantize_blockwise(
                scales,
                absmax=self.get_buffer(SCALE_SCALES),
                code=_scale_code(scales.device),
                blocksize=NF4_SCALES_BLOCK,
            )
            scales += self.get_buffer(SCALE_MEAN)
        whole = functional.QuantState(
            absmax=scales,
            shape=torch.Size((self.out_features, self.in_features)),
            blocksize=NF4_BLOCK,
            quant_type=NF4,
            dtype=dtype,
        )
        found: torch.Tensor = functional.dequantize_4bit(self.get_buffer(PACKED), whole)
        return found

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the output for `inputs`, `[..., in_features]`, in the dtype of `inputs`."""
        bias = None if self.bias is None else self.bias.to(inputs.dtype)
        product: torch.Tensor = _Product.apply(inputs, bias, self)
        return product

    def extra_repr(self) -> str:
        """Return the sizes in the format of `nn.Linear`."""
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, bias={self.bias is not None}, {NF4}"


class _Product(torch.autograd.Function):  # type: ignore[misc]
    """The autograd function of the product of `inputs` and a packed weight.

    It does not keep the unpacked weight for the backward pass.
    """

    @staticmethod
    def forward(
        ctx: Any, inputs: torch.Tensor, bias: torch.Tensor | None, layer: PackedLinear
    ) -> torch.Tensor:
        ctx.layer = layer
        return nn.functional.linear(inputs, layer.weight_in(inputs.dtype), bias)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, None, None]:
        if not ctx.needs_input_grad[0]:
            return None, None, None
        return gradient @ ctx.layer.weight_in(gradient.dtype), None, None


def packed_linears(model: nn.Module) -> Iterator[tuple[str, PackedLinear]]:
    """Yield (name, layer) for each layer of `model` with a packed weight."""
    for name, module in model.named_modules():
        if isinstance(module, PackedLinear):
            yield name, module


def packed_buffers(model: nn.Module) -> frozenset[str]:
    """Return the names of the buffers of all layers with packed weights."""
    return frozenset(
        f"{prefix}.{name}"
        for prefix, layer in packed_linears(model)
        for name, _ in layer.named_buffers()
    )


def check_kernels(device: torch.device) -> None:
    """Pack and unpack a small weight on `device`, to check that bitsandbytes works.

    Raises:
        BadRequest: bitsandbytes cannot be imported, or does not work on the device.
    """
    try:
        # Older releases pack whole blocks alone on CPUs.
        layer = PackedLinear(nn.Linear(5, 13, device=device), double_quant=True)
        layer.pack_weight(torch.ones(13, 5, device=device))
        layer.weight_in(torch.float32)
    except Exception as error:  # any error of its binary if it does not fit this machine
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise BadRequest(
            f'lora.frozen_precision = "{NF4}": bitsandbytes does not work on {device.type} '
            f"here: {reason}; install another release of it, or set lora.frozen_precision = "
            '"train"'
        ) from None


@cache
def _scale_code(device: torch.device) -> torch.Tensor:
    """Return the values that an 8-bit scale can have, fp32 `[256]`.

    The result is cached, because it is slow to compute.
    """
    code: torch.Tensor = _functional().create_dynamic_map().to(device)
    return code


def _functional() -> Any:
    from bitsandbytes import functional  # only jobs with packed weights pay for it

    return functional


SAID = f'lora.frozen_precision = "{NF4}"'


def pack_frozen(model: Any, *, double_quant: bool, kept: Container[str] = ()) -> None:
    """Replace the frozen linear layers of `model` by layers with packed weights.

    As in transformers' loader, the head and layers that share their weight are not replaced. Layers
    with a weight in `kept` are not replaced either.

    Raises:
        BadRequest: bitsandbytes is missing, or the model has no layer that can be replaced.
    """
    if find_spec("bitsandbytes") is None:
        raise BadRequest(
            f"{SAID}: needs bitsandbytes, which {sys.executable} does not have; run "
            f"{install_command(REQUIREMENTS['bitsandbytes'])}, or set lora.frozen_precision to "
            '"train"'
        )
    found = list(_packable(model, kept))
    if not found:
        raise BadRequest(
            f"{SAID}: bitsandbytes packs only frozen linear layers, and {type(model).__name__} "
            'has none; set it to "train"'
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
