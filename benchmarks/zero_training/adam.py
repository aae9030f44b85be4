"""One optimizer step on the CPU: torch's fused AdamW, its loop, and DeepSpeed's CPU Adam.

Interleaved in one process, so that drift of the machine hits all alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from statistics import median
from typing import Any

import torch

SHAPES: Mapping[str, list[tuple[int, ...]]] = {
    "one tensor of 50M": [(50_000_000,)],
    "64 tensors of 1M": [(1024, 1024)] * 64,
}
THREADS = (1, 2)
ROUNDS = 7


def _weights(shapes: list[tuple[int, ...]]) -> list[torch.nn.Parameter]:
    torch.manual_seed(0)
    weights = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes]
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    return weights


def _deepspeed(weights: list[torch.nn.Parameter]) -> Any:
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    return DeepSpeedCPUAdam(weights, lr=1e-3, adamw_mode=True)


OPTIMIZERS: Mapping[str, Callable[[list[torch.nn.Parameter]], Any]] = {
    "torch, fused": lambda weights: torch.optim.AdamW(weights, lr=1e-3, fused=True),
    "torch, foreach": lambda weights: torch.optim.AdamW(weights, lr=1e-3, foreach=True),
    "torch, a loop": lambda weights: torch.optim.AdamW(weights, lr=1e-3, foreach=False),
    "DeepSpeedCPUAdam": _deepspeed,
}


def _seconds(shapes: list[tuple[int, ...]]) -> dict[str, list[float]]:
    optimizers = {name: make(_weights(shapes)) for name, make in OPTIMIZERS.items()}
    seconds: dict[str, list[float]] = {name: [] for name in optimizers}
    for turn in range(ROUNDS + 1):
        for name, optimizer in optimizers.items():
            began = time.perf_counter()
            optimizer.step()
            if turn:
                seconds[name].append(time.perf_counter() - began)
    return seconds


def table() -> Iterator[str]:
    """The lines of the table: median milliseconds, and the ratio to torch's fused AdamW."""
    yield f"| parameters, threads | {' | '.join(OPTIMIZERS)} |"
    yield "|---|" + "---|" * len(OPTIMIZERS)
    for threads in THREADS:
        torch.set_num_threads(threads)
        for name, shapes in SHAPES.items():
            middle = {each: median(times) for each, times in _seconds(shapes).items()}
            least = middle["torch, fused"]
            cells = (f"{1e3 * s:.0f} ms ({s / least:.2f})" for s in middle.values())
            yield f"| {name}, {threads} | {' | '.join(cells)} |"
