"""Tensors without bytes, by the names that Megatron's reader gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zerotools.core.checkpoint import Checkpoint, Key, Origin, Tensor
from zerotools.core.dtypes import BFLOAT16, FLOAT32, DType

PATH = Path("run")
DENSE = {
    "self_attention.linear_qkv.weight": (32, 16),
    "self_attention.linear_qkv.layer_norm_weight": (16,),
    "self_attention.linear_proj.weight": (16, 16),
    "mlp.linear_fc1.weight": (48, 16),
    "mlp.linear_fc1.layer_norm_weight": (16,),
    "mlp.linear_fc2.weight": (16, 24),
}
EXPERTS = {
    **{name: shape for name, shape in DENSE.items() if not name.startswith("mlp")},
    "pre_mlp_layernorm.weight": (16,),
    "mlp.router.weight": (2, 16),
    "mlp.experts.local_experts.0.linear_fc1.weight": (24, 16),
    "mlp.experts.local_experts.1.linear_fc1.weight": (24, 16),
    "mlp.experts.local_experts.0.linear_fc2.weight": (16, 12),
    "mlp.experts.local_experts.1.linear_fc2.weight": (16, 12),
}


def model(*layers: dict[str, tuple[int, ...]], dtype: DType = BFLOAT16) -> dict[str, Tensor]:
    """A model with these layers."""
    shapes = {"embedding.word_embeddings.weight": (32, 16), "output_layer.weight": (32, 16)}
    shapes |= {
        f"decoder.layers.{number}.{name}": shape
        for number, layer in enumerate(layers)
        for name, shape in layer.items()
    }
    return {name: Tensor(dtype, shape, ()) for name, shape in shapes.items()}


def run(weights: dict[str, Tensor], *roles: str, **more: Any) -> Checkpoint:
    """A checkpoint of `weights`, with state of each of these roles for all of them."""
    tensors = {Key(name, "param"): tensor for name, tensor in weights.items()}
    for role in roles:
        tensors |= {Key(n, role): Tensor(FLOAT32, t.shape, ()) for n, t in weights.items()}
    return Checkpoint(PATH, tensors, Origin("dcp", PATH), **more)
