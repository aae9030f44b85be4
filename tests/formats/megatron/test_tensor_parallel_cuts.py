"""How tensor-parallel ranks share a weight."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerotools.core.errors import Unsupported
from zerotools.formats.megatron.tensor_parallel_cuts import Cut, cut_of

CUTS = {
    "embedding.word_embeddings.weight": Cut(0),
    "output_layer.weight": Cut(0),
    "decoder.layers.0.self_attention.linear_qkv.weight": Cut(0),
    "decoder.layers.0.self_attention.linear_qkv.bias": Cut(0),
    "decoder.layers.0.self_attention.linear_qkv.layer_norm_weight": Cut(None),
    "decoder.layers.0.self_attention.linear_proj.weight": Cut(1),
    "decoder.layers.0.self_attention.linear_proj.bias": Cut(None),
    "decoder.layers.0.self_attention.q_layernorm.weight": Cut(None),
    "decoder.layers.0.self_attention.linear_q_down_proj.weight": Cut(0),
    "decoder.layers.0.self_attention.linear_kv_down_proj.weight": Cut(None),
    "decoder.layers.0.self_attention.linear_kv_up_proj.weight": Cut(0),
    "decoder.layers.0.mlp.linear_fc1.weight": Cut(0, 2),
    "decoder.layers.0.mlp.linear_fc2.weight": Cut(1),
    "decoder.layers.0.mlp.linear_fc2.bias": Cut(None),
    "decoder.layers.0.mlp.router.weight": Cut(None),
    "decoder.layers.0.mlp.router.expert_bias": Cut(None),
    "decoder.layers.0.mlp.shared_experts.gate_weight": Cut(None),
    "decoder.layers.0.mlp.shared_experts.linear_fc1.weight": Cut(0, 2),
    "decoder.final_layernorm.weight": Cut(None),
}
ARGS: dict[str, Any] = {
    "swiglu": True,
    "q_lora_rank": 8,
    "kv_lora_rank": 2,
    "qk_pos_emb_head_dim": 2,
    "group_query_attention": True,
    "num_query_groups": 2,
}


@pytest.mark.parametrize(("name", "cut"), CUTS.items())
def test_a_weight_is_cut_by_its_name(name: str, cut: Cut) -> None:
    shape = (4,) if name.endswith(("bias", "norm_weight", "layernorm.weight")) else (4, 6)
    assert cut_of(name, shape, 2, ARGS) == cut
    assert cut_of(name, shape, 1, {}) == Cut(None)


@pytest.mark.parametrize(
    ("name", "shape", "ranks", "args", "said"),
    [
        ("a.something.weight", (4, 4), 2, ARGS, "is not known"),
        ("a.something.scale", (4,), 2, ARGS, "is not known"),
        ("a.linear_fc1.weight", (4, 4), 2, {}, "depends on args.swiglu"),
        ("a.linear_fc1.weight", (3, 4), 2, ARGS, "a rank has 3 rows"),
        ("a.linear_qkv.weight", (4, 4), 4, ARGS, "2 query groups, fewer than the ranks"),
        ("a.linear_q_down_proj.weight", (3, 4), 2, ARGS, "is not known"),
        ("a.linear_kv_down_proj.weight", (3, 4), 2, {}, "is not known"),
    ],
)
def test_what_is_not_known_is_refused(
    name: str, shape: tuple[int, ...], ranks: int, args: dict[str, Any], said: str
) -> None:
    with pytest.raises(Unsupported, match=said):
        cut_of(name, shape, ranks, args)


@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 3),
    st.sampled_from([(0, 1), (0, 2), (1, 1)]),
)
def test_the_parts_of_all_ranks_are_the_whole(
    ranks: int, rows: int, columns: int, kind: tuple[int, int]
) -> None:
    axis, halves = kind
    shape = (rows * halves, columns)
    cut = Cut(axis, halves)
    whole = np.arange(np.prod(cut.whole(shape, ranks))).reshape(cut.whole(shape, ranks))
    found = np.full_like(whole, -1)
    for rank in range(ranks):
        if halves == 2:
            gate, other = np.split(whole, 2)
            local = np.concatenate([np.split(gate, ranks)[rank], np.split(other, ranks)[rank]])
        else:
            local = np.split(whole, ranks, axis)[rank]
        for start, box in cut.parts(shape, rank, ranks):
            stop = tuple(a + n for a, n in zip(start, box.shape, strict=True))
            part = local[tuple(map(slice, start, stop))]
            found[tuple(map(slice, box.start, box.stop))] = part
    np.testing.assert_array_equal(found, whole)
