"""Starts the ranks of one case, and what each of them needs first."""

import os
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from harness.ports import free_port
from harness.started import Started

from ..deepspeed_runs.launch import environment as rank_environment

REPOSITORY = Path(__file__).resolve().parents[3]
DEADLINE_SECONDS = 300


def launch(module: str, arguments: list[str], world_size: int, directory: Path) -> None:
    """Runs `python -m module` on every rank inside `directory`."""
    port = free_port()
    ranks = []
    for rank in range(world_size):
        environment = rank_environment(rank, world_size, port) | {
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]),
        }
        command = [sys.executable, "-m", module, *arguments]
        ranks.append(Started(command, cwd=directory, env=environment))
    try:
        codes = [rank.wait(DEADLINE_SECONDS) for rank in ranks]
    finally:
        for each in ranks:
            each.end()
    if any(codes):
        raise RuntimeError(f"{module} {arguments}: exit statuses {codes}")


def tiny_llama(seed: int = 0) -> Any:
    """A Llama of one layer, with values by a seed."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=19,
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=32,
        tie_word_embeddings=False,
    )
    return LlamaForCausalLM(config)


def train(model: Any, optimizer: Any, steps: int, rank: int = 0) -> None:
    """Steps on a few tokens; every rank has others."""
    for step in range(steps):
        tokens = (torch.arange(6).reshape(1, 6) * (2 + rank) + step) % 19
        model(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def write_truth(tensors: dict[str, Tensor], directory: Path) -> None:
    """`truth.safetensors`: what the live program has, by `<name>|<role>`."""
    whole = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    save_file(whole, directory / "truth.safetensors")
