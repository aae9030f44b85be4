"""A training step on packed sequences: attention segment by segment, against a mask of all tokens.

    python -m benchmarks.packing

Prints a table. Both ways take the same batch in turns, in one process, so that a drifting clock is
the same for both; the losses of both are compared.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from statistics import median

import torch

from benchmarks.measuring import machine
from zerotoolsd.trainer.data.packing import join
from zerotoolsd.trainer.data.sequences import Example
from zerotoolsd.trainer.engine.objective import training_loss
from zerotoolsd.trainer.model.segments import SEGMENTED

CASES = ((1024, 64), (1024, 256), (4096, 64), (4096, 512), (4096, 2048))
"""Tokens of a packed sequence, and of each example in it."""
TURNS = 5
VOCABULARY = 512
WAYS = {"mask": "sdpa", "segments": SEGMENTED}


def model_of(length: int) -> torch.nn.Module:
    """A Llama of 2 layers, 128 wide, in fp32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=128,
            intermediate_size=344,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=length,
        )
    )


def compare(length: int, part: int) -> tuple[dict[str, float], float]:
    """(seconds of a forward and a backward pass by way, how far the losses are apart, relative)."""
    model, device = model_of(length), torch.device("cpu")
    ids = torch.randint(3, VOCABULARY, (part,)).tolist()
    packed = join([Example(ids, ids)] * (length // part))
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    losses: dict[str, float] = {}
    for _ in range(TURNS + 1):
        for name, implementation in WAYS.items():
            model.set_attn_implementation(implementation)
            started = time.perf_counter()
            loss = training_loss(model, [packed], device, weight=1.0 / length, router_weight=1.0)
            loss.backward()
            seconds[name].append(time.perf_counter() - started)
            losses[name] = float(loss.detach())
            model.zero_grad()
    first, second = losses.values()
    return {name: median(each[1:]) for name, each in seconds.items()}, abs(first - second) / first


def table() -> Iterator[str]:
    """One row for each case."""
    yield (
        "| tokens | of an example | with a mask | by segment | segment / mask | losses differ by |"
    )
    yield "|---|---|---|---|---|---|"
    for length, part in CASES:
        seconds, far = compare(length, part)
        ratio = seconds["segments"] / seconds["mask"]
        times = f"{1000 * seconds['mask']:.0f} ms | {1000 * seconds['segments']:.0f} ms"
        yield f"| {length} | {part} | {times} | {ratio:.2f} | {far:.0e} |"


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print(f"{machine()}\n")
    for line in table():
        print(line, flush=True)


if __name__ == "__main__":
    main()
