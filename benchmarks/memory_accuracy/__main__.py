"""Predicted memory against what is counted: `python -m benchmarks.memory_accuracy`.

Each architecture that the estimate knows is built a few blocks deep, and goes forward and backward
on the CPU while `LiveBytes` counts the tensors that are alive, operation by operation. Compared are
what the forward pass leaves for the backward pass, and the most at a time with the gradients of the
weights; over sequence lengths, types, attention and activation checkpointing. Bytes that are
counted are the same on any machine.

State by stage and offload, as the engine's ledger has it, is in `benchmarks.zero`; that of the loss
in `benchmarks.loss.sizes`. With a GPU, `max_memory_allocated` of the same passes is shown beside.
"""

from __future__ import annotations

import argparse
import gc
import warnings
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

import torch

from benchmarks.loss.live_bytes import LiveBytes
from zerotools.jobs.jobfile_tables.model import ModelSpec
from zerotools.ops.estimate.activation_memory import MicroBatch, activations_of
from zerotools.ops.estimate.model_families import FAMILIES, Architecture, architecture_of
from zerotoolsd.trainer.model.meta_model import checkpoint_activations, read_config

BLOCKS = 4
SIZES = {
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 688,
    "num_hidden_layers": BLOCKS,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GPT2 = {"vocab_size": 512, "n_embd": 256, "n_layer": BLOCKS, "n_head": 8, "n_positions": 2048}
EXPERTS = {"num_experts_per_tok": 2}
OWN: dict[str, dict[str, Any]] = {
    "gpt2": GPT2,
    "opt": {**SIZES, "ffn_dim": 1024, "intermediate_size": 1024},
    "mixtral": {**SIZES, **EXPERTS, "num_local_experts": 4},
    "qwen3_moe": {**SIZES, **EXPERTS, "num_experts": 4, "moe_intermediate_size": 192},
    "qwen3": {**SIZES, "head_dim": 32},
    "gemma": {**SIZES, "head_dim": 32},
}
TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
IDS = 24


class Found(NamedTuple):
    """Bytes of one case: predicted and counted, kept and at most."""

    name: str
    micro: MicroBatch
    kept: int
    counted_kept: int
    most: int
    counted_most: int
    on_gpu: int | None


def main() -> None:
    """Print a table, and what the errors are between."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=list(FAMILIES), default=list(FAMILIES))
    parser.add_argument("--lengths", nargs="*", type=int, default=[256, 1024])
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    print(f"torch {torch.__version__}, {_device_name()}\n")
    print("| model | type | attention | again | tokens | kept | off | most at a time | off | GPU |")
    print("|---|---|---|---|---|---:|---:|---:|---:|---:|")
    cases = list(_cases(arguments.only, arguments.lengths))
    for case in cases:
        print(_row(case))
    for attention in ("sdpa", "eager"):
        some = [case for case in cases if case.micro.attention == attention]
        _between(f"{attention}, kept", [case.kept / case.counted_kept - 1 for case in some])
        _between(f"{attention}, most", [case.most / case.counted_most - 1 for case in some])


def _cases(names: list[str], lengths: list[int]) -> Iterator[Found]:
    choices = product(names, TYPES, ("sdpa", "eager"), (False, True), lengths)
    for name, precision, attention, again, length in choices:
        yield _case(name, MicroBatch(2, length, precision, again, attention))


def _case(name: str, micro: MicroBatch) -> Found:
    model, architecture = _model(name, micro)
    weights = sum(p.numel() * p.element_size() for p in model.parameters())
    found = activations_of(architecture, micro)
    outside = sum(p.numel for p in architecture.parameters() if p.block is None) * micro.width
    late = weights - outside + found.last
    ids = IDS * micro.tokens
    kept, most = _passes(model, micro)
    on_gpu = _on_gpu(name, micro) if torch.cuda.is_available() else None
    return Found(
        name, micro, found.kept - ids, kept, max(found.kept + found.block - ids, late), most, on_gpu
    )


def _model(name: str, micro: MicroBatch) -> tuple[Any, Architecture]:
    from transformers import AutoModelForCausalLM

    tree = {**OWN.get(name, SIZES), "model_type": name}
    if name in ("gpt_neox", "opt"):
        tree.pop("num_key_value_heads", None)
    architecture = architecture_of(tree, name)
    assert architecture is not None
    known = read_config(ModelSpec(config=tree)).to_dict()
    dropping = {k: 0.0 for k, v in known.items() if "drop" in k and isinstance(v, float)}
    config = read_config(ModelSpec(config=tree | dropping))
    model = AutoModelForCausalLM.from_config(config, attn_implementation=micro.attention)
    model = model.to(TYPES[micro.precision]).train()
    if micro.checkpointing:
        checkpoint_activations(model)
    return model, architecture


def _passes(model: Any, micro: MicroBatch) -> tuple[int, int]:
    """Bytes alive after the forward pass, and the most in the backward pass."""
    ids = torch.full((micro.batch, micro.sequence), 3)
    with LiveBytes([*model.parameters(), *model.buffers(), ids]) as live:
        hidden = model.base_model(input_ids=ids, use_cache=False).last_hidden_state
        gc.collect()
        kept = live.now
        live.peak = kept
        hidden.sum().backward()
    return kept, live.peak


def _on_gpu(name: str, micro: MicroBatch) -> int:
    model = _model(name, micro)[0].cuda()
    ids = torch.full((micro.batch, micro.sequence), 3, device="cuda")
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    model.base_model(input_ids=ids, use_cache=False).last_hidden_state.sum().backward()
    return torch.cuda.max_memory_allocated() - before


def _row(case: Found) -> str:
    micro = case.micro
    gpu = "" if case.on_gpu is None else f"{case.most / case.on_gpu - 1:+.1%}"
    cells = (
        case.name,
        micro.precision,
        micro.attention,
        "yes" if micro.checkpointing else "",
        f"{micro.batch} x {micro.sequence}",
        f"{case.counted_kept / 2**20:.1f} MiB",
        f"{case.kept / case.counted_kept - 1:+.1%}",
        f"{case.counted_most / 2**20:.1f} MiB",
        f"{case.most / case.counted_most - 1:+.1%}",
        gpu,
    )
    return f"| {' | '.join(cells)} |"


def _between(what: str, errors: list[float]) -> None:
    within = sum(abs(error) <= 0.1 for error in errors)
    print(
        f"\n{what}: between {min(errors):+.1%} and {max(errors):+.1%} in {len(errors)} cases; "
        f"{within} of them within 10 %"
    )


def _device_name() -> str:
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "no GPU"


if __name__ == "__main__":
    main()
