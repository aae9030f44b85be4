"""Tiny models whose gradients are exact, so that a run repeats on another machine but for the last
bits of the optimizer's step.

The loss is the sum of every weight times a small multiple of 1/64, so each gradient is that
multiple: no matrix product, no sum whose order could matter. Initial values are fractions of
2**16, not random numbers.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

ParamGroup = dict[str, Any]


def initial(shape: Sequence[int], seed: int) -> Tensor:
    """Values in [-0.5, 0.5), float32, the same everywhere."""
    index = torch.arange(math.prod(shape), dtype=torch.int64)
    mixed = ((index + 1) * 40503 + (seed + 1) * 25173) % 65536
    return (mixed.to(torch.float32) / 65536.0 - 0.5).reshape(tuple(shape))


def gradient(shape: Sequence[int], step: int, rank: int) -> Tensor:
    """The gradient that `rank` sees in `step`: multiples of 1/64 in [-6/64, 6/64], float32."""
    index = torch.arange(math.prod(shape), dtype=torch.int64)
    wave = (index * 7 + step * 3 + rank * 5) % 13 - 6
    return (wave.to(torch.float32) / 64.0).reshape(tuple(shape))


class Block(nn.Module):
    """Parameters of any shape, each multiplied by the gradient it shall get, and summed."""

    def __init__(self, seed: int, **shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.names = tuple(shapes)
        for offset, (name, shape) in enumerate(shapes.items()):
            self.register_parameter(name, nn.Parameter(initial(shape, seed + offset)))

    def forward(self, step: int, rank: int) -> Tensor:
        total = torch.zeros((), dtype=torch.float32)
        for name in self.names:
            parameter = getattr(self, name)
            total = total + (parameter.float() * gradient(parameter.shape, step, rank)).sum()
        return total


class Model(nn.Module):
    """Sums the losses of its blocks; `idle` names those that stay out of the loss."""

    idle: tuple[str, ...] = ()

    def forward(self, step: int, rank: int) -> Tensor:
        total = torch.zeros((), dtype=torch.float32)
        for name, child in self.named_children():
            if name not in self.idle:
                total = total + child(step, rank)
        return total

    def groups(self) -> list[ParamGroup]:
        return [{"params": [p for p in self.parameters() if p.requires_grad]}]

    def group_names(self) -> list[list[str]]:
        """Names of the trainable parameters of every group, in the order of `groups`."""
        names = {id(p): name for name, p in self.named_parameters()}
        return [
            [names[id(p)] for p in group["params"] if p.requires_grad] for group in self.groups()
        ]


class Plain(Model):
    """Only trainable weights, of sizes that no world size divides."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = Block(1, weight=(11, 8))
        self.layer = Block(2, weight=(13, 7), bias=(13,))
        self.cube = Block(4, weight=(5, 3, 2))
        self.norm = Block(5, weight=(17,))


class Pair(Model):
    """As few parameters as a sharded model can have and still be one of blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = Block(1, weight=(11, 8))
        self.norm = Block(5, weight=(17,))


class Straddle(Model):
    """One matrix larger than two partitions at every world size, and single elements."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Block(1, weight=(1,))
        self.wide = Block(2, weight=(101, 7))
        self.last = Block(3, weight=(3,), bias=(1,))


class Zoo(Model):
    """Tied, frozen, never-used weights, buffers of every kind, two parameter groups."""

    idle = ("unused",)

    def __init__(self) -> None:
        super().__init__()
        self.embed = Block(1, weight=(11, 8))
        self.frozen = Block(2, weight=(5, 3), bias=(5,))
        self.layer = Block(4, weight=(13, 7), bias=(13,))
        self.cube = Block(6, weight=(5, 3, 2))
        self.unused = Block(7, weight=(3, 3))
        self.norm = Block(8, weight=(17,), bias=(1,))
        self.head = Block(1, weight=(11, 8))
        self.head.weight = self.embed.weight
        self.frozen.requires_grad_(False)
        self.register_buffer("seen", torch.tensor(7, dtype=torch.int64))
        self.layer.register_buffer("running", initial((6,), 9) + 1.0 / 3.0)
        self.layer.register_buffer("mask", torch.arange(6) % 2 == 0)
        self.cube.register_buffer("bytes", torch.arange(5, dtype=torch.uint8))
        self.norm.register_buffer("scratch", torch.ones(4), persistent=False)

    def groups(self) -> list[ParamGroup]:
        named = [(n, p) for n, p in self.named_parameters() if p.requires_grad]
        plain = ("bias", "norm.weight")
        return [
            {"params": [p for n, p in named if not n.endswith(plain)], "weight_decay": 0.1},
            {"params": [p for n, p in named if n.endswith(plain)], "lr": 0.02},
        ]


class TinyGroup(Model):
    """A second group of three elements: with four ranks, two of them hold padding only."""

    def __init__(self) -> None:
        super().__init__()
        self.body = Block(1, weight=(9, 5), bias=(9,))
        self.scale = Block(3, weight=(2,), bias=(1,))

    def groups(self) -> list[ParamGroup]:
        return [
            {"params": list(self.body.parameters())},
            {"params": list(self.scale.parameters()), "lr": 0.005, "weight_decay": 0.25},
        ]


class Adapter(Model):
    """Like a low-rank adapter: nearly all weights are frozen, among them a tied pair."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = Block(1, weight=(11, 8))
        self.base = Block(2, weight=(19, 7), bias=(19,))
        self.head = Block(1, weight=(11, 8))
        self.head.weight = self.embed.weight
        self.requires_grad_(False)
        self.lora_a = Block(4, weight=(2, 7))
        self.lora_b = Block(5, weight=(19, 2))


class FrozenGroup(Model):
    """Three groups; every parameter of the middle one is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Block(1, weight=(7, 5))
        self.middle = Block(2, weight=(6, 4))
        self.last = Block(3, weight=(5, 3))
        self.middle.requires_grad_(False)

    def groups(self) -> list[ParamGroup]:
        parts = (self.first, self.middle, self.last)
        rates = (0.01, 0.02, 0.03)
        return [
            {"params": list(p.parameters()), "lr": r} for p, r in zip(parts, rates, strict=True)
        ]


class OddCount(Model):
    """Seven parameters of growing size, for orders that depend on the count of ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(Block(i, weight=(2 * i + 3, i + 1)) for i in range(7))

    def forward(self, step: int, rank: int) -> Tensor:
        return torch.stack([part(step, rank) for part in self.parts]).sum()


MODELS: dict[str, Callable[[], Model]] = {
    "plain": Plain,
    "straddle": Straddle,
    "zoo": Zoo,
    "tiny_group": TinyGroup,
    "adapter": Adapter,
    "frozen_group": FrozenGroup,
    "odd_count": OddCount,
}
