"""What MaxText makes of a model's state dict, written down with numpy from its own conversion:
`src/maxtext/checkpoint_conversion/utils/param_mapping.py` at commit e591f30c, the mappings and
hooks of GEMMA2, GEMMA3 and DEEPSEEK, and `standalone_scripts/convert_gemma_chkpt.py` next to it,
which converts Google's own files of Gemma 1. `gemma_logits` is what `src/maxtext/models/gemma.py`
computes, with `layers/attentions.py`, `embeddings.py`, `linears.py`, `normalizations.py` and
`decoders.py` (`logits_via_embedding`). The package `maxtext` (0.1.0 to 0.2.5) requires Python 3.12
and JAX, so tests that also run on 3.11 cannot call its conversion;
`tests/golden/orbax_runs/maxtext_judge.py` does.

Each function returns the tree of weights with scanned layers or without (`scan`). Without `scaled`
the elements are only moved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]
Hook = Callable[[np.ndarray], np.ndarray]


def plus_one(x: np.ndarray) -> np.ndarray:
    return x + np.float32(1)


def minus_one(x: np.ndarray) -> np.ndarray:
    return x - np.float32(1)


def same(x: np.ndarray) -> np.ndarray:
    return x


def transposed(x: np.ndarray) -> np.ndarray:
    return x.T


def in_heads(heads: int) -> Hook:
    return lambda x: x.T.reshape(x.shape[1], heads, -1)


def from_heads(heads: int) -> Hook:
    return lambda x: x.T.reshape(heads, -1, x.shape[0])


def bf16(number: float) -> np.float32:
    """The nearest bfloat16."""
    import ml_dtypes

    return np.float32(ml_dtypes.bfloat16(number))


def gemma(state: Arrays, config: Mapping[str, Any], scan: bool, *, scaled: bool = True) -> Arrays:
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    root = np.float32(config["head_dim"] ** -0.5 if scaled else 1)
    norm = plus_one if scaled else same
    made = _ends(state, np.float32(config["hidden_size"] ** 0.5 if scaled else 1), norm)
    parts: dict[str, tuple[str, Hook]] = {
        "pre_self_attention_norm.scale": ("input_layernorm", norm),
        "pre_ffw_norm.scale": ("post_attention_layernorm", norm),
        "self_attention.query.kernel": ("self_attn.q_proj", lambda x: in_heads(heads)(x) * root),
        "self_attention.key.kernel": ("self_attn.k_proj", in_heads(kv)),
        "self_attention.value.kernel": ("self_attn.v_proj", in_heads(kv)),
        "self_attention.out.kernel": ("self_attn.o_proj", from_heads(heads)),
        "mlp.wi_0.kernel": ("mlp.gate_proj", transposed),
        "mlp.wi_1.kernel": ("mlp.up_proj", transposed),
        "mlp.wo.kernel": ("mlp.down_proj", transposed),
    }
    for new, (old, hook) in parts.items():
        numbers = range(config["num_hidden_layers"])
        layers = [hook(state[f"model.layers.{n}.{old}.weight"]) for n in numbers]
        _put(made, "decoder.layers", new, layers, scan)
    return made


def gemma_logits(tree: Arrays, tokens: list[int], config: Mapping[str, Any]) -> np.ndarray:
    """The logits that MaxText computes from its tree of Gemma 1 with scanned layers."""
    groups = config["num_attention_heads"] // config["num_key_value_heads"]
    head, count = config["head_dim"], len(tokens)
    angles = np.arange(count)[:, None] / 10000 ** (2 * np.arange(head // 2) / head)
    sin, cos = (np.tile(turned, 2)[:, None] for turned in (np.sin(angles), np.cos(angles)))

    def normed(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
        return x / np.sqrt(np.mean(x * x, -1, keepdims=True) + 1e-6) * scale

    def rotated(x: np.ndarray) -> np.ndarray:
        first, second = np.split(x, 2, -1)
        return x * cos + np.concatenate((-second, first), -1) * sin

    def gelu(x: np.ndarray) -> np.ndarray:
        return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))

    double = {name: value.astype("f8") for name, value in tree.items()}
    table = double["token_embedder.embedding"]
    x = table[tokens]
    for number in range(config["num_hidden_layers"]):
        layer = {
            name.removeprefix("decoder.layers."): np.take(value, number, 1)
            for name, value in double.items()
            if name.startswith("decoder.layers.")
        }
        seen = normed(x, layer["pre_self_attention_norm.scale"])
        query, key, value = (
            np.einsum("td,dnh->tnh", seen, layer[f"self_attention.{kind}.kernel"])
            for kind in ("query", "key", "value")
        )
        key, value = np.repeat(rotated(key), groups, 1), np.repeat(value, groups, 1)
        scores = np.einsum("tnh,snh->nts", rotated(query), key)
        scores = np.exp(np.where(np.tri(count, dtype=bool), scores, -np.inf))
        weights = scores / scores.sum(-1, keepdims=True)
        mixed = np.einsum("nts,snh->tnh", weights, value)
        x = x + np.einsum("tnh,nhd->td", mixed, layer["self_attention.out.kernel"])
        seen = normed(x, layer["pre_ffw_norm.scale"])
        hidden = gelu(seen @ layer["mlp.wi_0.kernel"]) * (seen @ layer["mlp.wi_1.kernel"])
        x = x + hidden @ layer["mlp.wo.kernel"]
    x = normed(x, double["decoder.decoder_norm.scale"])
    return np.asarray(x @ table.T / np.sqrt(x.shape[-1]))


def gemma2(state: Arrays, config: Mapping[str, Any], scan: bool, *, scaled: bool = True) -> Arrays:
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    root = np.float32(1 / np.sqrt(config["head_dim"]) if scaled else 1)
    norm = plus_one if scaled else same
    made = _ends(state, np.float32(config["hidden_size"] ** 0.5 if scaled else 1), norm)
    parts: dict[str, tuple[str, Hook]] = {
        "pre_self_attention_norm_{k}.scale": ("input_layernorm", norm),
        "post_self_attention_norm_{k}.scale": ("post_attention_layernorm", norm),
        "pre_ffw_norm_{k}.scale": ("pre_feedforward_layernorm", norm),
        "post_ffw_norm_{k}.scale": ("post_feedforward_layernorm", norm),
        "self_attention_{k}.query.kernel": (
            "self_attn.q_proj",
            lambda x: in_heads(heads)(x) * root,
        ),
        "self_attention_{k}.key.kernel": ("self_attn.k_proj", in_heads(kv)),
        "self_attention_{k}.value.kernel": ("self_attn.v_proj", in_heads(kv)),
        "self_attention_{k}.out.kernel": ("self_attn.o_proj", from_heads(heads)),
        "mlp_{k}.wi_0.kernel": ("mlp.gate_proj", transposed),
        "mlp_{k}.wi_1.kernel": ("mlp.up_proj", transposed),
        "mlp_{k}.wo.kernel": ("mlp.down_proj", transposed),
    }
    for first, kind in enumerate(("local", "global")):
        numbers = range(first, config["num_hidden_layers"], 2)
        for new, (old, hook) in parts.items():
            layers = [hook(state[f"model.layers.{n}.{old}.weight"]) for n in numbers]
            _put(made, "decoder.layers", new.format(k=kind), layers, scan)
    return made


def gemma3(state: Arrays, config: Mapping[str, Any], scan: bool, *, scaled: bool = True) -> Arrays:
    heads, kv = config["num_attention_heads"], config["num_key_value_heads"]
    norm = plus_one if scaled else same
    made = _ends(state, bf16(config["hidden_size"] ** 0.5 if scaled else 1), norm)
    parts: dict[str, tuple[str, Hook]] = {
        "pre_self_attention_norm.scale": ("input_layernorm", norm),
        "post_self_attention_norm.scale": ("post_attention_layernorm", norm),
        "pre_ffw_norm.scale": ("pre_feedforward_layernorm", norm),
        "post_ffw_norm.scale": ("post_feedforward_layernorm", norm),
        "self_attention.query_norm.scale": ("self_attn.q_norm", norm),
        "self_attention.key_norm.scale": ("self_attn.k_norm", norm),
        "self_attention.query.kernel": ("self_attn.q_proj", in_heads(heads)),
        "self_attention.key.kernel": ("self_attn.k_proj", in_heads(kv)),
        "self_attention.value.kernel": ("self_attn.v_proj", in_heads(kv)),
        "self_attention.out.kernel": ("self_attn.o_proj", from_heads(heads)),
        "mlp.wi_0.kernel": ("mlp.gate_proj", transposed),
        "mlp.wi_1.kernel": ("mlp.up_proj", transposed),
        "mlp.wo.kernel": ("mlp.down_proj", transposed),
    }
    count = config["num_hidden_layers"]
    scanned = count // 6 * 6
    for new, (old, hook) in parts.items():
        layers = [hook(state[f"model.layers.{n}.{old}.weight"]) for n in range(count)]
        if not scan:
            _put(made, "decoder.layers", new, layers, scan)
            continue
        for number in range(6 if scanned else 0):
            block = layers[number:scanned:6]
            _put(made, "decoder.layers", f"layers_{number}.{new}", block, scan)
        for number, layer in enumerate(layers[scanned:]):
            made[f"decoder.layers_remainder.layers_{number}.{new}"] = layer
    return made


def deepseek(state: Arrays, config: Mapping[str, Any], scan: bool) -> Arrays:
    heads, first = config["num_attention_heads"], config["first_k_dense_replace"]
    made = {
        "token_embedder.embedding": state["model.embed_tokens.weight"],
        "decoder.decoder_norm.scale": state["model.norm.weight"],
        "decoder.logits_dense.kernel": state["lm_head.weight"].T,
    }
    both: dict[str, tuple[str, Hook]] = {
        "pre_self_attention_layer_norm.scale": ("input_layernorm.weight", same),
        "post_self_attention_layer_norm.scale": ("post_attention_layernorm.weight", same),
        "self_attention.kv_norm.scale": ("self_attn.kv_a_layernorm.weight", same),
        "self_attention.wkv_a.kernel": ("self_attn.kv_a_proj_with_mqa.weight", transposed),
        "self_attention.wkv_b.kernel": ("self_attn.kv_b_proj.weight", in_heads(heads)),
        "self_attention.out.kernel": ("self_attn.o_proj.weight", from_heads(heads)),
        "self_attention.query.kernel": ("self_attn.q_proj.weight", in_heads(heads)),
        "self_attention.q_norm.scale": ("self_attn.q_a_layernorm.weight", same),
        "self_attention.wq_a.kernel": ("self_attn.q_a_proj.weight", transposed),
        "self_attention.wq_b.kernel": ("self_attn.q_b_proj.weight", in_heads(heads)),
    }
    dense: dict[str, tuple[str, Hook]] = {
        "mlp.wi_0.kernel": ("mlp.gate_proj.weight", transposed),
        "mlp.wi_1.kernel": ("mlp.up_proj.weight", transposed),
        "mlp.wo.kernel": ("mlp.down_proj.weight", transposed),
    }
    block = "DeepSeekMoeBlock_0."
    moe: dict[str, tuple[str, Hook]] = {
        f"{block}shared_experts.wi_0.kernel": ("mlp.shared_experts.gate_proj.weight", transposed),
        f"{block}shared_experts.wi_1.kernel": ("mlp.shared_experts.up_proj.weight", transposed),
        f"{block}shared_experts.wo.kernel": ("mlp.shared_experts.down_proj.weight", transposed),
        f"{block}MoeBlock_0.gate.kernel": ("mlp.gate.weight", transposed),
        f"{block}MoeBlock_0.gate.bias": ("mlp.gate.e_score_correction_bias", same),
    }
    experts = {"wi_0": "gate_proj", "wi_1": "up_proj", "wo": "down_proj"}
    kinds = (
        ("dense_layers", both | dense, range(first)),
        ("moe_layers", both | moe, range(first, config["num_hidden_layers"])),
    )
    for kind, parts, numbers in kinds:
        for new, (old, hook) in parts.items():
            held = [state.get(f"model.layers.{n}.{old}") for n in numbers]
            layers = [hook(each) for each in held if each is not None]
            _put(made, f"decoder.{kind}", new, layers, scan)
    for new, old in experts.items():
        layers = [
            np.stack(
                [
                    state[f"model.layers.{n}.mlp.experts.{e}.{old}.weight"].T
                    for e in range(config["n_routed_experts"])
                ]
            )
            for n in range(first, config["num_hidden_layers"])
        ]
        _put(made, "decoder.moe_layers", f"{block}MoeBlock_0.{new}", layers, scan)
    return made


def _ends(state: Arrays, root: np.float32, norm: Hook) -> Arrays:
    return {
        "token_embedder.embedding": state["model.embed_tokens.weight"] * root,
        "decoder.decoder_norm.scale": norm(state["model.norm.weight"]),
    }


def _put(made: Arrays, kind: str, new: str, layers: list[np.ndarray], scan: bool) -> None:
    """Put layers into the tree: stacked along dimension 1 (`param_scan_axis`), or each under its
    number."""
    if scan and layers:
        made[f"{kind}.{new}"] = np.stack(layers, 1)
    elif not scan:
        made |= {f"{kind}_{number}.{new}": layer for number, layer in enumerate(layers)}
