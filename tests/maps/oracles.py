"""What other programs make of a model's state dict, written down from their formulas with numpy.

Meta and torchtitan: rows of each head from halves to pairs, `view(heads, 2, rows / 2, columns)
.transpose(1, 2)` (torchtitan `models/llama3/state_dict_adapter.py`, transformers'
`convert_llama_weights_to_hf.py` the other way round). Megatron-Core: the rows of QKV are
(groups, heads / groups + 2, head); gate lies before up; experts are stacked (`megatron.core`
`transformer/attention.py`, `mlp.py`, `moe/experts.py`). gpt-oss: gate and up of an expert are every
second row of the transposed weight (Megatron-Bridge `models/gpt_oss/gpt_oss_bridge.py`). Norms
behind attention and MLP: of GLM 4 as slime has them (`backends/megatron_utils/megatron_to_hf`), of
OLMo 2 as a bridge for mbridge's `LLMBridge` (`register_model("olmo2")`), under the same names.
OLMo-core: `src/olmo_core/nn/hf/convert.py`. MaxText: `src/maxtext/checkpoint_conversion/utils/
param_mapping.py` at commit e591f30c, the hooks of LLAMA31, QWEN and MIXTRAL.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]


def meta(state: Mapping[str, np.ndarray], config: Any) -> Arrays:
    """The state dict as Meta's consolidated.00.pth has it."""
    names = {
        "self_attn.v_proj": "attention.wv",
        "self_attn.o_proj": "attention.wo",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.down_proj": "feed_forward.w2",
        "mlp.up_proj": "feed_forward.w3",
        "input_layernorm": "attention_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    made: Arrays = {}
    for name, value in state.items():
        if name == "lm_head.weight":
            made["output.weight"] = value
        elif name == "model.embed_tokens.weight":
            made["tok_embeddings.weight"] = value
        elif name == "model.norm.weight":
            made["norm.weight"] = value
        else:
            _, _, layer, rest = name.split(".", 3)
            kind = rest.removesuffix(".weight")
            if kind in ("self_attn.q_proj", "self_attn.k_proj"):
                is_q = kind == "self_attn.q_proj"
                heads = config.num_attention_heads if is_q else config.num_key_value_heads
                new = "attention.wq" if is_q else "attention.wk"
                made[f"layers.{layer}.{new}.weight"] = _in_pairs(value, heads)
            else:
                made[f"layers.{layer}.{names[kind]}.weight"] = value
    return made


def olmo_core(state: Mapping[str, np.ndarray]) -> Arrays:
    """The state dict as OLMo-core has it, which renames alone."""
    names = {
        "self_attn.q_proj": "attention.w_q",
        "self_attn.k_proj": "attention.w_k",
        "self_attn.v_proj": "attention.w_v",
        "self_attn.o_proj": "attention.w_out",
        "self_attn.q_norm": "attention.q_norm",
        "self_attn.k_norm": "attention.k_norm",
        "mlp.gate_proj": "feed_forward.w1",
        "mlp.down_proj": "feed_forward.w2",
        "mlp.up_proj": "feed_forward.w3",
        "post_attention_layernorm": "attention_norm",
        "post_feedforward_layernorm": "feed_forward_norm",
        "embed_tokens": "embeddings",
        "norm": "lm_head.norm",
        "lm_head": "lm_head.w_out",
    }
    made: Arrays = {}
    for name, value in state.items():
        module = name.removeprefix("model.").removesuffix(".weight")
        if module.startswith("layers."):
            _, number, kind = module.split(".", 2)
            made[f"blocks.{number}.{names[kind]}.weight"] = value
        else:
            made[f"{names[module]}.weight"] = value
    return made


_MAXTEXT = {
    "input_layernorm": "pre_self_attention_layer_norm.scale",
    "post_attention_layernorm": "post_self_attention_layer_norm.scale",
    "self_attn.q_proj": "self_attention.query",
    "self_attn.k_proj": "self_attention.key",
    "self_attn.v_proj": "self_attention.value",
    "self_attn.o_proj": "self_attention.out",
    "self_attn.q_norm": "self_attention.query_norm.scale",
    "self_attn.k_norm": "self_attention.key_norm.scale",
    "mlp.gate_proj": "mlp.wi_0",
    "mlp.up_proj": "mlp.wi_1",
    "mlp.down_proj": "mlp.wo",
    "block_sparse_moe.gate": "MoeBlock_0.gate",
    "block_sparse_moe.experts.{e}.w1": "MoeBlock_0.wi_0",
    "block_sparse_moe.experts.{e}.w3": "MoeBlock_0.wi_1",
    "block_sparse_moe.experts.{e}.w2": "MoeBlock_0.wo",
    "mlp.gate": "moe_block.gate",
    "mlp.experts.{e}.gate_proj": "moe_block.wi_0",
    "mlp.experts.{e}.up_proj": "moe_block.wi_1",
    "mlp.experts.{e}.down_proj": "moe_block.wo",
}


def maxtext(state: Mapping[str, np.ndarray], config: Any, *, pairs: bool = False) -> Arrays:
    """The tree of weights as MaxText has it with scanned layers. `pairs`: with rope_type llama3.1,
    a head has the rows of both halves in turns (`adjust_rope`).
    """
    layers: dict[str, list[list[np.ndarray]]] = {}
    made: Arrays = {}
    for name, value in state.items():
        module, kind = name.removeprefix("model.").rsplit(".", 1)
        if module == "embed_tokens":
            made["token_embedder.embedding"] = value
        elif module == "norm":
            made["decoder.decoder_norm.scale"] = value
        elif module == "lm_head":
            made["decoder.logits_dense.kernel"] = value.T
        else:
            _, layer, rest = module.split(".", 2)
            new = _MAXTEXT[re.sub(r"experts\.\d+", "experts.{e}", rest)]
            here = layers.setdefault(_with_end(new, kind, value.ndim, "experts." in rest), [])
            here += [[] for _ in range(int(layer) + 1 - len(here))]
            here[int(layer)].append(_of_maxtext(new, value, config, pairs=pairs))
    for new, parts in layers.items():
        each = [np.stack(own) if "experts" in new else own[0] for own in parts]
        made[f"decoder.layers.{new.removesuffix('|experts')}"] = np.stack(each, 1)
    return made


def _with_end(new: str, kind: str, ndim: int, is_expert: bool) -> str:
    if is_expert:
        return f"{new}|experts"
    return new if new.endswith(".scale") else f"{new}.{'kernel' if ndim == 2 else kind}"


def _of_maxtext(new: str, value: np.ndarray, config: Any, *, pairs: bool) -> np.ndarray:
    heads, kv, head = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    shapes = {"query": (heads, head), "key": (kv, head), "value": (kv, head)}
    part = new.removeprefix("self_attention.")
    if part == "out":
        return value.T.reshape(heads, head, -1)
    if part not in shapes:
        return value.T
    found = value.T.reshape(*value.T.shape[:-1], *shapes[part])
    if pairs and part != "value":
        first, second = found[..., : head // 2], found[..., head // 2 :]
        found = np.stack([first, second], -1).reshape(found.shape)
    if part == "query" and config.model_type in ("llama", "mistral", "mixtral"):
        found = found.astype(np.float32) * np.float32(1 / np.sqrt(head))
    return found


def _in_pairs(value: np.ndarray, heads: int) -> np.ndarray:
    rows, columns = value.shape
    halves = value.reshape(heads, 2, rows // heads // 2, columns)
    return halves.transpose(0, 2, 1, 3).reshape(rows, columns)


_DENSE = {
    "self_attn.o_proj": "self_attention.linear_proj",
    "self_attn.q_norm": "self_attention.q_layernorm",
    "self_attn.k_norm": "self_attention.k_layernorm",
    "self_attn.q_proj": "self_attention.linear_q_proj",
    "self_attn.q_a_proj": "self_attention.linear_q_down_proj",
    "self_attn.q_b_proj": "self_attention.linear_q_up_proj",
    "self_attn.kv_a_proj_with_mqa": "self_attention.linear_kv_down_proj",
    "self_attn.kv_b_proj": "self_attention.linear_kv_up_proj",
    "mlp.down_proj": "mlp.linear_fc2",
    "mlp.gate_up_proj": "mlp.linear_fc1",
    "mlp.gate": "mlp.router",
    "mlp.router": "mlp.router",
    "block_sparse_moe.gate": "mlp.router",
    "mlp.shared_expert.down_proj": "mlp.shared_experts.linear_fc2",
    "mlp.shared_experts.down_proj": "mlp.shared_experts.linear_fc2",
}
"""Modules that are only renamed."""
_NAMES = {
    "self_attn.q_a_layernorm.weight": "self_attention.linear_q_up_proj.layer_norm_weight",
    "self_attn.kv_a_layernorm.weight": "self_attention.linear_kv_up_proj.layer_norm_weight",
    "self_attn.sinks": "self_attention.core_attention.softmax_offset",
    "mlp.gate.e_score_correction_bias": "mlp.router.expert_bias",
    "mlp.shared_expert_gate.weight": "mlp.shared_experts.gate_weight",
    "post_self_attn_layernorm.weight": "post_self_attn_layernorm.weight",
    "post_mlp_layernorm.weight": "post_mlp_layernorm.weight",
}


def megatron(state: Mapping[str, np.ndarray], config: Any) -> Arrays:
    """The state dict under Megatron-Core's names, layer by layer, without padding."""
    made: Arrays = {"decoder.final_layernorm.weight": state["model.norm.weight"]}
    made["embedding.word_embeddings.weight"] = state["model.embed_tokens.weight"]
    if "lm_head.weight" in state:
        made["output_layer.weight"] = state["lm_head.weight"]
    for number in range(config.num_hidden_layers):
        prefix = f"model.layers.{number}."
        own = {n.removeprefix(prefix): v for n, v in state.items() if n.startswith(prefix)}
        layer = _layer(own, config)
        made |= {f"decoder.layers.{number}.{name}": value for name, value in layer.items()}
    return made | _mtp(state, config)


def _mtp(state: Mapping[str, np.ndarray], config: Any) -> Arrays:
    """Megatron-Core `transformer/multi_token_prediction.py`, Megatron-Bridge `deepseek/common.py`:
    a layer, and what makes its input; embedding and head are those of the model."""
    prefix, new = f"model.layers.{config.num_hidden_layers}.", "mtp.layers.0."
    own = {n.removeprefix(prefix): v for n, v in state.items() if n.startswith(prefix)}
    if not own:
        return {}
    made = {f"{new}transformer_layer.{name}": value for name, value in _layer(own, config).items()}
    for name in ("enorm.weight", "hnorm.weight", "eh_proj.weight"):
        made[f"{new}{name}"] = own[name]
    made[f"{new}final_layernorm.weight"] = own["shared_head.norm.weight"]
    return made


def _layer(own: Arrays, config: Any) -> Arrays:
    made: Arrays = {}
    is_latent = "self_attn.kv_b_proj.weight" in own
    for name, value in own.items():
        module, _, kind = name.rpartition(".")
        fused_q = module == "self_attn.q_proj" and not is_latent
        if name in _NAMES:
            made[_NAMES[name]] = value
        elif module in _DENSE and not fused_q:
            made[f"{_DENSE[module]}.{kind}"] = value
    made |= _norms(own, is_latent=is_latent)
    if not is_latent:
        for kind in ("weight", "bias"):
            made |= _attention(own, config, kind)
    for gate, new in (
        ("mlp.", "mlp."),
        ("mlp.shared_expert.", "mlp.shared_experts."),
        ("mlp.shared_experts.", "mlp.shared_experts."),
    ):
        for kind in ("weight", "bias"):
            if f"{gate}gate_proj.{kind}" in own:
                both = [own[f"{gate}gate_proj.{kind}"], own[f"{gate}up_proj.{kind}"]]
                made[f"{new}linear_fc1.{kind}"] = np.concatenate(both)
    return made | _experts(own)


def _norms(own: Arrays, *, is_latent: bool) -> Arrays:
    has_experts = any("experts" in name for name in own)
    first = "input_layernorm.weight" if is_latent else "self_attention.linear_qkv.layer_norm_weight"
    before = "pre_mlp_layernorm.weight" if has_experts else "mlp.linear_fc1.layer_norm_weight"
    after = own["post_attention_layernorm.weight"]
    if "input_layernorm.weight" not in own:  # OLMo 2: norms behind alone
        return {
            "post_self_attn_layernorm.weight": after,
            "post_mlp_layernorm.weight": own["post_feedforward_layernorm.weight"],
        }
    made = {first: own["input_layernorm.weight"]}
    if "pre_feedforward_layernorm.weight" not in own:
        return made | {before: after}
    return made | {
        "self_attention.linear_proj.post_layernorm.weight": after,
        before: own["pre_feedforward_layernorm.weight"],
        "mlp.linear_fc2.post_layernorm.weight": own["post_feedforward_layernorm.weight"],
    }


def _attention(own: Arrays, config: Any, kind: str) -> Arrays:
    groups, heads = config.num_key_value_heads, config.num_attention_heads
    if f"self_attn.qkv_proj.{kind}" in own:
        fused = own[f"self_attn.qkv_proj.{kind}"]
        size = fused.shape[0] // (heads + 2 * groups)
        q, k, v = np.split(fused, [heads * size, (heads + groups) * size])
    elif f"self_attn.q_proj.{kind}" in own:
        q, k, v = (own[f"self_attn.{letter}_proj.{kind}"] for letter in "qkv")
    else:
        return {}
    size = k.shape[0] // groups
    rows = [
        each.reshape(groups, -1, size, *each.shape[1:]) for each in (q, k, v)
    ]  # (groups, heads of the group, head, columns)
    joined = np.concatenate(rows, 1).reshape(-1, *q.shape[1:])
    return {f"self_attention.linear_qkv.{kind}": joined}


def _experts(own: Arrays) -> Arrays:
    new = "mlp.experts.experts.linear_"
    if "mlp.experts.gate_up_proj_bias" in own:
        weight = own["mlp.experts.gate_up_proj"].transpose(0, 2, 1)
        bias = own["mlp.experts.gate_up_proj_bias"]
        return {
            f"{new}fc1.weight": np.concatenate([weight[:, ::2], weight[:, 1::2]], 1),
            f"{new}fc1.bias": np.concatenate([bias[:, ::2], bias[:, 1::2]], 1),
            f"{new}fc2.weight": own["mlp.experts.down_proj"].transpose(0, 2, 1),
            f"{new}fc2.bias": own["mlp.experts.down_proj_bias"],
        }
    for prefix, gate, up, down in (
        ("mlp.experts.", "gate_proj", "up_proj", "down_proj"),
        ("block_sparse_moe.experts.", "w1", "w3", "w2"),
    ):
        count = sum(name.startswith(prefix) and name.endswith(f"{down}.weight") for name in own)
        if count:

            def of(kind: str, number: int, prefix: str = prefix) -> np.ndarray:
                return own[f"{prefix}{number}.{kind}.weight"]

            both = [np.concatenate([of(gate, n), of(up, n)]) for n in range(count)]
            return {
                f"{new}fc1.weight": np.stack(both),
                f"{new}fc2.weight": np.stack([of(down, n) for n in range(count)]),
            }
    return {}


def stacked(layers: Arrays, count: int) -> Arrays:
    """Layers along a new first dimension, under names without their number, as a uniform torch_dist
    has them."""
    made: Arrays = {}
    for name, value in layers.items():
        if name.startswith("decoder.layers."):
            rest = name.split(".", 3)[3]
            each = [layers[f"decoder.layers.{number}.{rest}"] for number in range(count)]
            made[f"decoder.layers.{rest}"] = np.stack(each)
        else:
            made[name] = value
    return made
