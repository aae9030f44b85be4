"""Checkpoints in Megatron-Core's layouts, of a model of two layers, saved with torch.

Megatron itself does not run here; names, shapes and files are those that it writes (megatron-core
0.12 to 0.16): dist_checkpointing/strategies/torch.py, training/checkpointing.py.
"""

from __future__ import annotations

import json
import pickle
import sys
import types
import warnings
from argparse import Namespace
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import DefaultSavePlanner

LAYERS, HIDDEN, VOCABULARY = 2, 8, 16
MODEL = {
    "embedding.word_embeddings.weight": (VOCABULARY, HIDDEN),
    "decoder.layers.self_attention.linear_qkv.layer_norm_weight": (LAYERS, HIDDEN),
    "decoder.layers.self_attention.linear_qkv.weight": (LAYERS, 3 * HIDDEN, HIDDEN),
    "decoder.layers.self_attention.linear_proj.weight": (LAYERS, HIDDEN, HIDDEN),
    "decoder.layers.mlp.linear_fc1.weight": (LAYERS, 4 * HIDDEN, HIDDEN),
    "decoder.layers.mlp.linear_fc2.weight": (LAYERS, HIDDEN, 2 * HIDDEN),
    "decoder.final_layernorm.weight": (HIDDEN,),
    "output_layer.weight": (VOCABULARY, HIDDEN),
}
ROLES = ("fp32_param", "exp_avg", "exp_avg_sq")


def common(iteration: int) -> dict[str, Any]:
    """What is not sharded."""
    args = Namespace(
        num_layers=LAYERS,
        hidden_size=HIDDEN,
        tensor_model_parallel_size=2,
        pipeline_model_parallel_size=2,
    )
    return {"args": args, "checkpoint_version": 3.0, "iteration": iteration}


def torch_dist(path: Path, iteration: int, *, masters: str = "param") -> Path:
    """Weights in bf16, masters and moments; `masters` is what this version calls the former."""
    state: dict[str, Any] = {
        name: torch.ones(shape, dtype=torch.bfloat16) for name, shape in MODEL.items()
    }
    for role in (masters, "exp_avg", "exp_avg_sq"):
        state |= {f"optimizer.state.{role}.{name}": torch.ones(s) for name, s in MODEL.items()}
    state["decoder.layers.mlp.linear_fc1._extra_state/shard_0_1"] = [None]
    state["rng_state/shard_0.0_1.1"] = [{"np_rng_state": 1}]
    _save(state, path)
    torch.save(common(iteration), path / "common.pt")
    backend = {"sharded_backend": "torch_dist", "sharded_backend_version": 1}
    (path / "metadata.json").write_text(json.dumps(backend))
    return path


def _save(state: dict[str, Any], path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        planner = DefaultSavePlanner(flatten_state_dict=False)
        dcp.save(state, checkpoint_id=path, planner=planner, no_dist=True)


def as_mcore(path: Path, attribute: str = "mcore_data", name: str = "MCoreMetadata") -> None:
    """`.metadata` as megatron-core 0.12 to 0.15 wrote it: an attribute, and in 0.15 a class, of its
    own."""
    module = types.ModuleType("megatron_strategies_torch")

    class MCoreMetadata:
        pass

    MCoreMetadata.__module__, MCoreMetadata.__qualname__ = module.__name__, name
    setattr(module, name, MCoreMetadata)
    sys.modules[module.__name__] = module
    try:
        metadata = MCoreMetadata()
        saved = pickle.loads((path / ".metadata").read_bytes())
        metadata.__dict__ |= vars(saved) | {attribute: {"decoder": {"nd_shape": (1, 2)}}}
        (path / ".metadata").write_bytes(pickle.dumps(metadata, 4))
    finally:
        del sys.modules[module.__name__]


def legacy(path: Path, iteration: int) -> Path:
    """TP 2 x PP 2 with the distributed optimizer."""
    for tensor in range(2):
        for stage in range(2):
            rank = path / f"mp_rank_{tensor:02d}_{stage:03d}"
            rank.mkdir(parents=True)
            weight = torch.ones(3 * HIDDEN // 2, HIDDEN, dtype=torch.bfloat16)
            model = {"decoder.layers.0.self_attention.linear_qkv.weight": weight}
            ones = torch.ones(weight.numel())
            flat: dict[str, Any] = dict.fromkeys(("param", "exp_avg", "exp_avg_sq"), ones)
            flat["numel_unpadded"] = weight.numel()
            state = {**common(iteration), "model": model, "optimizer": {"param_groups": []}}
            torch.save(state, rank / "model_optim_rng.pt")
            buckets = {(torch.bfloat16, torch.float32): flat}
            torch.save({"buckets_coalesced": True, 0: buckets}, rank / "distrib_optim.pt")
    return path


def run(path: Path, tracked: str) -> Path:
    """The run around iterations that are there."""
    (path / "latest_checkpointed_iteration.txt").write_text(tracked)
    return path
