"""A training step of a small model in each way: its time, and the most memory of its process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import torch

from zerotools.core.loss_size import LossSize
from zerotoolsd.trainer.data.sequences import Example
from zerotoolsd.trainer.engine.chunked_loss import ChunkedLoss
from zerotoolsd.trainer.engine.objective import training_loss

CASES = [(2304, 32768, 256, 4)]
"""Tokens, vocabulary, width and layers."""
REPEATS = 3


def run(tokens: int, vocabulary: int, hidden: int, layers: int, cut: str) -> tuple[float, int]:
    """(median seconds of a forward and a backward pass, bytes that they added to the process)."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=hidden // 64,
        num_key_value_heads=hidden // 64,
        max_position_embeddings=tokens,
    )
    model = LlamaForCausalLM(config).bfloat16()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    if cut != "off":
        ChunkedLoss(model, LossSize(tokens, vocabulary, hidden, cut)).install()
    ids = torch.randint(0, vocabulary, (tokens,)).tolist()
    example = Example(ids, ids)
    device = torch.device("cpu")

    def step(example: Example) -> None:
        training_loss(model, [example], device, weight=1.0, router_weight=1.0).backward()

    step(Example(ids[:16], ids[:16]))
    before, seconds = _most_resident(), []
    for _ in range(REPEATS):
        started = time.perf_counter()
        step(example)
        seconds.append(time.perf_counter() - started)
    return median(seconds), _most_resident() - before


def _most_resident() -> int:
    """The high-water mark of this process's memory."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def table() -> Iterator[str]:
    """One row for each case and way, each in a process of its own."""
    yield "| tokens | vocabulary | hidden | layers | chunked_loss | seconds | added MiB |"
    yield "|---|---|---|---|---|---|---|"
    for case in CASES:
        for cut in ("off", "auto", "on"):
            words = [*map(str, case), cut]
            program = [sys.executable, "-m", "benchmarks.loss", "step", *words]
            out = subprocess.run(program, check=True, stdout=subprocess.PIPE, env=dict(os.environ))
            seconds, added = out.stdout.split()
            cells = (*words, f"{float(seconds):.2f}", f"{int(added) / (1 << 20):.0f}")
            yield f"| {' | '.join(cells)} |"
