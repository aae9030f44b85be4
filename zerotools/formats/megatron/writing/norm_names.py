"""Names of norms, which differ between Megatron's layers and those of Transformer Engine.

    in both                                       where
    self_attention.linear_qkv.layer_norm_weight   attention with linear_qkv
    input_layernorm.weight                        latent attention
    mlp.linear_fc1.layer_norm_weight              a dense layer without latent attention

    Transformer Engine                                  Megatron's own
    pre_mlp_layernorm.weight                            mlp.linear_fc1.layer_norm_weight
    mlp.linear_fc1.layer_norm_weight (latent, dense)    pre_mlp_layernorm.weight
    self_attention.linear_q_up_proj.layer_norm_weight   self_attention.q_layernorm.weight
    self_attention.linear_kv_up_proj.layer_norm_weight  self_attention.kv_layernorm.weight

Only the first of the second table is not of latent attention. A norm is written under the name of
Transformer Engine's layers, and also under the name of Megatron's layers if it differs.

Source: megatron/core/models/gpt/gpt_layer_specs.py of 0.16 (`sharded_state_dict_keys_map`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

_LAYER = re.compile(r"(.*\blayers\.\d+\.(?:transformer_layer\.)?)(.+)", re.S)
_PRE_MLP, _FC1 = "pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_"
_INPUT, _QKV = "input_layernorm.", "self_attention.linear_qkv.layer_norm_"
_LATENT = {
    "self_attention.q_layernorm.": "self_attention.linear_q_up_proj.layer_norm_",
    "self_attention.kv_layernorm.": "self_attention.linear_kv_up_proj.layer_norm_",
}


@dataclass(frozen=True)
class NormNames:
    """`written` maps each norm to its written name; `second` maps a written name to its other
    name."""

    written: Mapping[str, str]
    second: Mapping[str, str]


def norm_names(names: Collection[str]) -> NormNames:
    """Return how the norms of a model with weights `names` are called, one of each layer."""
    written: dict[str, str] = {}
    second: dict[str, str] = {}
    for name in names:
        match = _LAYER.fullmatch(name)
        if match is None:
            continue
        for fused, own in _pairs(match[1], names):
            for old in (fused, own):
                end = match[2].removeprefix(old)
                if end in ("weight", "bias") and match[2] == old + end:
                    written[name] = f"{match[1]}{fused}{end}"
                    if _asks_for_both(match[1], own, fused, names):
                        second[written[name]] = f"{match[1]}{own}{end}"
    return NormNames(written, second)


def _pairs(layer: str, names: Collection[str]) -> Iterator[tuple[str, str]]:
    """Yield (a norm's name in Transformer Engine's layer, its name in Megatron's layer)."""
    if f"{layer}self_attention.linear_qkv.weight" in names:
        yield _QKV, _INPUT
    is_dense = f"{layer}mlp.linear_fc1.weight" in names
    yield (_FC1, _PRE_MLP) if is_dense else (_PRE_MLP, _FC1)
    for own, fused in _LATENT.items():
        if layer + fused.replace("layer_norm_", "weight") in names:
            yield fused, own


def _asks_for_both(layer: str, own: str, fused: str, names: Collection[str]) -> bool:
    """Return whether the two kinds of layers save the norm under different names."""
    is_latent = f"{layer}self_attention.linear_kv_up_proj.weight" in names
    return fused == _PRE_MLP or own in _LATENT or (is_latent and fused == _FC1)
