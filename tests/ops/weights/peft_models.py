"""Small models with adapters of PEFT: what a run saves, what PEFT saves, and what PEFT merges."""

from __future__ import annotations

import random
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LLAMA: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24,
    "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
    "attention_bias": True, "tie_word_embeddings": False,
}  # fmt: skip
GPT2: dict[str, Any] = {
    "model_type": "gpt2", "vocab_size": 40, "n_embd": 16, "n_layer": 2, "n_head": 2,
    "n_positions": 16, "bos_token_id": 0, "eos_token_id": 0,
}  # fmt: skip
MIXTRAL: dict[str, Any] = {
    "model_type": "mixtral", "vocab_size": 40, "hidden_size": 16, "intermediate_size": 24,
    "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
    "num_local_experts": 3,
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A model's config, and the keywords of LoraConfig. `rows`: to which the vocabulary is enlarged
    before the adapter is added."""

    model: Mapping[str, Any]
    lora: Mapping[str, Any]
    dtype: str = "float32"
    rows: int | None = None
    second: Mapping[str, Any] = field(default_factory=dict)


TIED = {**LLAMA, "tie_word_embeddings": True}
EXPERTS = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
CASES: dict[str, Case] = {
    "patterns, rsLoRA and lora_bias": Case(
        LLAMA,
        {
            "r": 4, "lora_alpha": 6, "target_modules": ["q_proj", "k_proj"], "use_rslora": True,
            "lora_bias": True, "rank_pattern": {"layers.1.self_attn.q_proj": 2},
            "alpha_pattern": {"k_proj": 3}, "bias": "all",
        },
    ),
    "DoRA in 16 bits": Case(
        LLAMA,
        {"r": 2, "target_modules": ["q_proj", "embed_tokens"], "use_dora": True},
        "bfloat16",
    ),
    "Conv1D, square layers and the head": Case(
        GPT2,
        {"r": 2, "target_modules": ["c_attn", "attn.c_proj", "lm_head"], "bias": "lora_only"},
    ),
    "Conv1D with DoRA": Case(
        GPT2, {"r": 2, "target_modules": ["c_fc", "c_proj"], "use_dora": True}
    ),
    "experts": Case(
        MIXTRAL, {"r": 2, "target_modules": ["q_proj"], "target_parameters": EXPERTS}
    ),
    "tokens of tied embeddings": Case(
        TIED, {"r": 2, "target_modules": ["v_proj"], "trainable_token_indices": [3, 1, 5]}
    ),
    "modules that are saved whole": Case(
        LLAMA,
        {"r": 2, "target_modules": ["o_proj"], "modules_to_save": ["lm_head", "embed_tokens"]},
        second={"r": 3, "lora_alpha": 20, "target_modules": ["o_proj"]},
    ),
    "one of two tied layers": Case(TIED, {"r": 2, "target_modules": ["v_proj", "embed_tokens"]}),
    "a tied layer that is saved whole": Case(
        TIED, {"r": 2, "target_modules": ["v_proj"], "modules_to_save": ["embed_tokens"]}
    ),
    "two layers that are tied and saved whole": Case(
        TIED,
        {
            "r": 2, "target_modules": ["v_proj"], "modules_to_save": ["embed_tokens"],
            "ensure_weight_tying": True,
        },
    ),
    "a tied layer that is larger and saved whole": Case(
        TIED,
        {"r": 2, "target_modules": ["v_proj"], "modules_to_save": ["embed_tokens"]},
        rows=44,
    ),
    "an adapter of two tied layers": Case(
        TIED,
        {"r": 2, "target_modules": ["v_proj", "embed_tokens"], "ensure_weight_tying": True},
    ),
    "a larger vocabulary": Case(
        LLAMA, {"r": 2, "target_modules": ["down_proj"], "init_lora_weights": False}, rows=44
    ),
}  # fmt: skip


@dataclass
class Trained:
    """A `run` of one file, the `adapter` as PEFT saves it, the `base` model and what PEFT merges,
    each a directory; the `merged` weights, and those `before`."""

    base: Path
    run: Path
    adapter: Path
    saved: Path
    merged: dict[str, Any]
    before: dict[str, Any]


def train(case: Case, directory: Path) -> Trained:
    """Adapters whose values are no longer the first ones."""
    import peft
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    dtype = getattr(torch, case.dtype)
    base, run, adapter = (directory / name for name in ("base", "run", "adapter"))
    whole = AutoModelForCausalLM.from_config(AutoConfig.for_model(**case.model)).to(dtype)
    whole.save_pretrained(base)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = AutoModelForCausalLM.from_pretrained(base, dtype=dtype)
        if case.rows:
            plain.resize_token_embeddings(case.rows, mean_resizing=False)
        before = {name: tensor.clone() for name, tensor in plain.state_dict().items()}
        model = peft.get_peft_model(plain, peft.LoraConfig(task_type="CAUSAL_LM", **case.lora))
        if case.second:
            model.add_adapter("second", peft.LoraConfig(task_type="CAUSAL_LM", **case.second))
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.requires_grad or "lora_" in name:
                    parameter.add_(torch.randn_like(parameter) * 0.1)
        model.save_pretrained(adapter)
        run.mkdir()
        torch.save(model.state_dict(), run / "pytorch_model.bin")
        _untie(model)
        whole = model.merge_and_unload()
        whole.save_pretrained(directory / "merged")
    return Trained(base, run, adapter, directory / "merged", whole.state_dict(), before)


def _untie(model: Any) -> None:
    """Give tied layers of which one has an adapter weights of their own, as each of them computes
    with its own sum. PEFT would add both adapters to one weight."""
    import torch

    layers = model.get_input_embeddings(), model.get_output_embeddings()
    inner, head = (getattr(layer, "base_layer", layer) for layer in layers)
    if (inner, head) != layers and inner.weight is head.weight:
        head.weight = torch.nn.Parameter(head.weight.clone())


def drawn(seed: int) -> Case:
    """One of many configs."""
    draw = random.Random(seed)
    model = draw.choice([LLAMA, TIED, GPT2, MIXTRAL])
    leaves = {
        "llama": ["q_proj", "v_proj", "o_proj", "up_proj", "down_proj", "embed_tokens", "lm_head"],
        "gpt2": ["c_attn", "c_fc", "c_proj", "attn.c_proj", "wte", "wpe", "lm_head"],
        "mixtral": ["q_proj", "o_proj", "lm_head", "embed_tokens"],
    }[model["model_type"]]
    targets = draw.sample(leaves, draw.randint(1, 3))
    rank = draw.choice([1, 2, 4])
    lora: dict[str, Any] = {
        "r": rank,
        "lora_alpha": draw.choice([rank, 2 * rank, 5]),
        "target_modules": targets,
        "use_rslora": draw.random() < 0.3,
        "bias": draw.choice(["none", "none", "all", "lora_only"]),
    }
    if draw.random() < 0.3:
        lora["rank_pattern"] = {targets[0]: 3}
    if draw.random() < 0.3:
        lora["alpha_pattern"] = {targets[-1]: 7}
    if draw.random() < 0.3 and "lm_head" not in targets and model is not GPT2:
        lora["modules_to_save"] = ["lm_head"]
    if model["model_type"] == "mixtral" and draw.random() < 0.6:
        lora["target_parameters"] = draw.sample(EXPERTS, draw.randint(1, 2))
    elif draw.random() < 0.3:
        lora["use_dora"] = True
    elif draw.random() < 0.3 and {"embed_tokens", "wte", "lm_head"}.isdisjoint(targets):
        lora["trainable_token_indices"] = draw.sample(range(40), 4)
    of_tokens = {"embed_tokens", "wte", "lm_head"} & set(targets)
    # PEFT does not save the other embedding where one has an adapter, nor do maps know of rows.
    rows = (
        48 if draw.random() < 0.3 and not of_tokens | lora.keys() & {"target_parameters"} else None
    )
    # Both adapters of one tied weight are added one after the other, and rounded in between.
    dtype = "float32" if len(of_tokens) > 1 else draw.choice(["float32", "bfloat16", "float16"])
    return Case(model, lora, dtype, rows)
