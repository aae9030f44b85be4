"""Norms are written under the names of Transformer Engine, and once more where it needs that."""

from __future__ import annotations

import pytest

from zerotools.formats.megatron.writing.norm_names import norm_names

L = "decoder.layers.3."
QKV, FC1 = f"{L}self_attention.linear_qkv.weight", f"{L}mlp.linear_fc1.weight"
UP = f"{L}self_attention.linear_kv_up_proj.weight"


@pytest.mark.parametrize(
    ("names", "written", "second"),
    [
        ({QKV}, {"input_layernorm.weight": "self_attention.linear_qkv.layer_norm_weight"}, {}),
        ({QKV}, {"input_layernorm.bias": "self_attention.linear_qkv.layer_norm_bias"}, {}),
        ({QKV, FC1}, {"pre_mlp_layernorm.weight": "mlp.linear_fc1.layer_norm_weight"}, {}),
        (
            {QKV},
            {"mlp.linear_fc1.layer_norm_weight": "pre_mlp_layernorm.weight"},
            {"pre_mlp_layernorm.weight": "mlp.linear_fc1.layer_norm_weight"},
        ),
        (
            {UP, FC1},
            {"pre_mlp_layernorm.weight": "mlp.linear_fc1.layer_norm_weight"},
            {"mlp.linear_fc1.layer_norm_weight": "pre_mlp_layernorm.weight"},
        ),
        (
            {UP},
            {
                "self_attention.kv_layernorm.weight": (
                    "self_attention.linear_kv_up_proj.layer_norm_weight"
                )
            },
            {
                "self_attention.linear_kv_up_proj.layer_norm_weight": (
                    "self_attention.kv_layernorm.weight"
                )
            },
        ),
        ({UP}, {}, {}),
    ],
)
def test_each_norm_has_the_name_of_its_layer(
    names: set[str], written: dict[str, str], second: dict[str, str]
) -> None:
    norms = {L + name for name in written}
    found = norm_names(names | norms)
    assert found.written == {L + old: L + new for old, new in written.items()}
    assert found.second == {L + name: L + other for name, other in second.items()}


def test_latent_attention_keeps_its_input_norm() -> None:
    assert norm_names({UP, f"{L}input_layernorm.weight"}).written == {}
