"""Tiny models that learn: their loss depends on every weight, frozen weight and buffer.

Three tokens predict a fourth. Initial values are formulas, and a batch is a function of its step
alone, so that runs on any number of ranks see the same samples.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from .models import Model, ParamGroup, initial

TOKENS, CONTEXT, WIDTH, HIDDEN = 29, 3, 8, 13
GLOBAL_BATCH = 12


def batch(step: int) -> tuple[Tensor, Tensor]:
    """Contexts (12, 3) and targets (12,) of a step, int64: a token is 3 times the last, plus 7."""
    first = (torch.arange(GLOBAL_BATCH) * 5 + step * 11) % TOKENS
    rows = [first]
    for _ in range(CONTEXT):
        rows.append((rows[-1] * 3 + 7) % TOKENS)
    return torch.stack(rows[:CONTEXT], 1), rows[CONTEXT]


def fill(model: nn.Module) -> None:
    """Weights by formula: matrices in [-0.5, 0.5), vectors in [0.5, 1.5)."""
    with torch.no_grad():
        for seed, parameter in enumerate(model.parameters()):
            parameter.copy_(initial(parameter.shape, seed) + (parameter.dim() == 1))


def forget(model: nn.Module) -> None:
    """Other values in every weight and saved buffer, which only loading can put right."""
    with torch.no_grad():
        for value in model.state_dict().values():
            value.copy_(~value if value.dtype == torch.bool else value / 2 + 1)


class Learner(Model):
    """Only trainable weights, in one group."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.layer = nn.Linear(CONTEXT * WIDTH, HIDDEN)
        self.norm = nn.LayerNorm(HIDDEN)
        self.head = nn.Linear(HIDDEN, TOKENS, bias=False)
        fill(self)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:  # type: ignore[override]
        hidden = self.norm(torch.tanh(self.layer(self.embed(tokens).flatten(1))))
        return functional.cross_entropy(self.head(hidden).float(), targets)


class LearnerZoo(Model):
    """Tied, frozen and unused weights, buffers, and three groups; the last has three elements."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS, WIDTH)
        self.base = nn.Linear(WIDTH, WIDTH)
        self.layer = nn.Linear(CONTEXT * WIDTH, HIDDEN)
        self.unused = nn.Linear(3, 3)
        self.norm = nn.LayerNorm(HIDDEN)
        self.out = nn.Linear(HIDDEN, WIDTH)
        self.head = nn.Linear(WIDTH, TOKENS, bias=False)
        self.temper = nn.Parameter(torch.ones(CONTEXT))
        fill(self)
        self.head.weight = self.embed.weight
        self.base.requires_grad_(False)
        self.register_buffer("shift", torch.tensor(4))
        self.layer.register_buffer("mix", initial((WIDTH,), 9) + 1)
        self.layer.register_buffer("mask", torch.arange(WIDTH) % 3 != 0)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:  # type: ignore[override]
        values = self.base(self.embed((tokens + self.shift) % TOKENS))
        values = values * self.layer.mix.to(values.dtype)
        values = values * self.layer.mask * self.temper.unsqueeze(1)
        hidden = self.norm(torch.tanh(self.layer(values.flatten(1))))
        return functional.cross_entropy(self.head(self.out(hidden)).float(), targets)

    def groups(self) -> list[ParamGroup]:
        named = [(n, p) for n, p in self.named_parameters() if p.requires_grad and n != "temper"]
        return [
            {"params": [p for _, p in named if p.dim() > 1], "weight_decay": 0.1},
            {"params": [p for _, p in named if p.dim() == 1], "lr": 0.02},
            {"params": [self.temper], "lr": 0.005, "weight_decay": 0.25},
        ]


LEARNERS: dict[str, Callable[[], Model]] = {"learner": Learner, "zoo": LearnerZoo}
