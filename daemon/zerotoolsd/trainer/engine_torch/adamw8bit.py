"""AdamW with 8-bit moments. A byte is the index of one of 256 numbers in a table, and this number
is multiplied by the scale of the byte's block.

The tables, the block size of 256 elements and the rule are those of bitsandbytes' AdamW8bit. In a
step, a moment is converted to fp32, updated, and used to update the weight. Then it is stored as
the byte of the nearest number of the table. bitsandbytes counts blocks through the whole tensor.
Here blocks begin again in each row of a matrix, or in each matrix of a stack. If the length of the
rows is a multiple of 256, as in most models, the blocks are the same as in bitsandbytes. The bytes
of a row depend only on that row, and a checkpoint continues bit for bit at any number of ranks.
bitsandbytes is not needed.

Vectors and tensors with less than 4096 elements keep fp32 moments.

Source: Dettmers et al., "8-bit Optimizers via Block-wise Quantization"; bitsandbytes 0.50.2,
`functional.create_dynamic_map`, `backends/cpu/ops.py`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from zerotools.core.training_memory_layout import EIGHT_BIT_BLOCK, MOMENTS, has_eight_bit_moments
from zerotoolsd.trainer.allocate_tensors import MemoryTier
from zerotoolsd.trainer.engine_torch.reduce_and_update import local_tensor
from zerotoolsd.trainer.model.sharding import wrap_local

MOST_AT_A_TIME = 1 << 22
"""Moments are converted to fp32 for at most this many elements at a time."""
_MOMENTS = (("exp_avg", True), ("exp_avg_sq", False))
_EXPONENTS = 7
_LEAST_SCALE = 1e-38


class AdamW8bit(torch.optim.Optimizer):  # type: ignore[misc] # torch's types are not followed
    """An optimizer that updates this rank's rows of fp32 weights according to AdamW's rule, with
    8-bit moments.
    """

    def __init__(
        self, groups: list[dict[str, Any]], *, lr: float, betas: tuple[float, float], eps: float
    ) -> None:
        super().__init__(groups, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": 0.0})

    def step(self, closure: Callable[[], float] | None = None) -> None:
        with torch.no_grad():
            for group in self.param_groups:
                for weight in group["params"]:
                    if weight.grad is not None:
                        self._update(weight, group)

    def _update(self, weight: torch.Tensor, group: dict[str, Any]) -> None:
        state = {name: local_tensor(tensor) for name, tensor in self.state[weight].items()}
        state["step"] += 1
        step = float(state["step"])
        values, gradient = local_tensor(weight), local_tensor(weight.grad)
        if "exp_avg" in state:
            _adamw(values, gradient, state["exp_avg"], state["exp_avg_sq"], step, group)
            return
        rows = max(1, MOST_AT_A_TIME // max(1, math.prod(values.shape[1:])))
        for begin in range(0, values.shape[0], rows):
            part = slice(begin, begin + rows)
            moments = [
                dequantised(state[f"{name}_8bit"][part], state[f"{name}_scale"][part], signed)
                for name, signed in _MOMENTS
            ]
            mean, square = moments
            _adamw(values[part], gradient[part], mean, square, step, group)
            for (name, signed), moment in zip(_MOMENTS, moments, strict=True):
                codes, scales = quantised(moment, signed)
                state[f"{name}_8bit"][part] = codes
                state[f"{name}_scale"][part] = scales


def _adamw(
    values: torch.Tensor,
    gradient: torch.Tensor,
    mean: torch.Tensor,
    square: torch.Tensor,
    step: float,
    group: dict[str, Any],
) -> None:
    """Update the fp32 weights `values`, and their moments `mean` and `square`, in place."""
    first, second = group["betas"]
    rate = group["lr"]
    mean.mul_(first).add_(gradient, alpha=1 - first)
    square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
    root = (square.sqrt() / math.sqrt(1 - second**step)).add_(group["eps"])
    values.mul_(1 - rate * group["weight_decay"])
    values.addcdiv_(mean, root, value=-rate / (1 - first**step))


def first_state(weight: nn.Parameter, tier: MemoryTier) -> dict[str, torch.Tensor]:
    """Return the optimizer state of `weight` before the first step, in the memory tier `tier`. All
    moments are 0.
    """
    rows = local_tensor(weight)
    state = {"step": torch.zeros((), dtype=torch.float32)}
    if not has_eight_bit_moments(tuple(weight.shape)):
        for name, _ in _MOMENTS:
            state[name] = _zeros(weight, rows.shape, weight.shape, torch.float32, tier)
        return state
    blocks = math.ceil(math.prod(weight.shape[1:]) / EIGHT_BIT_BLOCK)
    part, whole = (rows.shape[0], blocks), (weight.shape[0], blocks)
    for name, _ in _MOMENTS:
        state[f"{name}_8bit"] = _zeros(weight, rows.shape, weight.shape, torch.uint8, tier)
        state[f"{name}_scale"] = _zeros(weight, part, whole, torch.float32, tier)
    return state


def _zeros(
    weight: torch.Tensor,
    part: tuple[int, ...],
    whole: tuple[int, ...],
    dtype: torch.dtype,
    tier: MemoryTier,
) -> torch.Tensor:
    memory = tier.zeros(part, dtype, MOMENTS)
    if not isinstance(weight, DTensor):
        return memory
    return wrap_local(memory, weight.device_mesh, weight.placements, whole)


def quantised(values: torch.Tensor, signed: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Quantise fp32 `values` in blocks.

    Returns (bytes, with the shape of `values`; scales, `[rows, blocks of a row]`).
    """
    blocks = _in_blocks(values)
    scales = blocks.abs().amax(dim=2)
    relative = blocks * (1 / scales.clamp(min=_LEAST_SCALE)).unsqueeze(2)
    table = table_of(signed, values.device)
    between = (table[:-1] + table[1:]) / 2
    codes = torch.bucketize(relative, between, out_int32=True).to(torch.uint8)
    return codes.flatten(1)[:, : math.prod(values.shape[1:])].reshape(values.shape), scales


def dequantised(codes: torch.Tensor, scales: torch.Tensor, signed: bool) -> torch.Tensor:
    """Return the fp32 values of the bytes `codes`, with the `scales` of their blocks."""
    values = table_of(signed, codes.device)[codes.int()]
    width = math.prod(codes.shape[1:])
    whole = scales.repeat_interleave(EIGHT_BIT_BLOCK, dim=1)[:, :width]
    return values.mul_(whole.reshape(codes.shape))


def _in_blocks(values: torch.Tensor) -> torch.Tensor:
    """Return the values as `[rows, blocks, elements of a block]`.

    If the last block of a row is shorter, it is padded with zeros.
    """
    flat = values.reshape(values.shape[0], math.prod(values.shape[1:]))
    missing = -flat.shape[1] % EIGHT_BIT_BLOCK
    if missing:
        flat = nn.functional.pad(flat, (0, missing))
    return flat.unflatten(1, (flat.shape[1] // EIGHT_BIT_BLOCK, EIGHT_BIT_BLOCK))


@cache
def table_of(signed: bool, device: torch.device) -> torch.Tensor:
    """Return the 256 numbers for which a byte can stand, in ascending order.

    They are 0, 1, and the middles of parts of the seven ranges [0.1 x, x] for x = 1, 0.1, ... 1e-6.
    A range is divided into equal parts, twice as many as the next smaller range. In a signed table,
    each range has half as many parts, and the table also has the negatives of the middles.
    """
    numbers = [torch.tensor([0.0, 1.0])]
    for exponent in range(_EXPONENTS):
        parts = 2**exponent if signed else 2 ** (exponent + 1)
        edges = torch.linspace(0.1, 1, parts + 1, dtype=torch.float32)
        middles = (edges[:-1] + edges[1:]) / 2 * 10.0 ** (exponent - _EXPONENTS + 1)
        numbers += [middles, -middles] if signed else [middles]
    return torch.cat(numbers).sort().values.to(device)
