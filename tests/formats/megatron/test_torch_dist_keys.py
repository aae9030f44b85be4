"""What keys of torch_dist are to the model."""

from __future__ import annotations

import pytest

from zerotools.core.checkpoint import Key
from zerotools.core.dtypes import BFLOAT16, FLOAT32
from zerotools.formats.megatron.torch_dist_keys import keys_of, stack_of

NAMES = {
    "embedding.word_embeddings.weight": (0, "embedding.word_embeddings.weight"),
    "decoder.layers.mlp.linear_fc2.weight": (1, "decoder.layers.5.mlp.linear_fc2.weight"),
    "decoder.layers.7.mlp.linear_fc2.weight": (0, "decoder.layers.7.mlp.linear_fc2.weight"),
    "decoder.layers.mlp.experts.experts.linear_fc1.weight": (
        2,
        "decoder.layers.5.mlp.experts.local_experts.6.linear_fc1.weight",
    ),
    "decoder.layers.7.mlp.experts.experts.linear_fc1.weight": (
        1,
        "decoder.layers.7.mlp.experts.local_experts.5.linear_fc1.weight",
    ),
    "decoder.layers.7.mlp.experts.experts.3.linear_fc1.weight_w": (
        0,
        "decoder.layers.7.mlp.experts.local_experts.3.linear_fc1.weight_w",
    ),
    "mtp.layers.0.transformer_layer.mlp.linear_fc2.weight": (
        0,
        "mtp.layers.0.transformer_layer.mlp.linear_fc2.weight",
    ),
    "players.weight": (0, "players.weight"),
}


@pytest.mark.parametrize(("key", "axes", "name"), [(k, *v) for k, v in NAMES.items()])
def test_a_key_is_of_one_layer_and_one_expert(key: str, axes: int, name: str) -> None:
    stack = stack_of(key)
    assert (stack.axes, stack.name((5, 6)[:axes])) == (axes, name)


def test_roles() -> None:
    saved = {
        "a.weight": BFLOAT16,
        "b.weight": FLOAT32,
        "layers.0.mlp.router.expert_bias": FLOAT32,
        "optimizer.state.fp32_param.a.weight": FLOAT32,
        "chained_1.optimizer.state.exp_avg.a.weight": FLOAT32,
        "optimizer.state.param.b.weight": FLOAT32,
        "optimizer.distributed.dp_group_idx_0.gbuf_idx_0.param": FLOAT32,
        "rng_state": FLOAT32,
    }
    assert list(keys_of(saved).values()) == [
        Key("a.weight", "param16"),
        Key("b.weight", "param"),
        Key("layers.0.mlp.router.expert_bias", "buffer"),
        Key("a.weight", "param"),
        Key("a.weight", "exp_avg"),
        Key("optimizer.state.param.b.weight", "state"),
        Key("optimizer.distributed.dp_group_idx_0.gbuf_idx_0.param", "state"),
        Key("rng_state", "state"),
    ]
