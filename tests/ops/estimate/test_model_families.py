"""The parameters of known architectures are those that transformers makes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.ops.estimate.tiny_configs import config
from zerotools.core.errors import BadRequest
from zerotools.ops.estimate.model_families import FAMILIES, architecture_of

CHANGES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in FAMILIES),
    ("llama", {"tie_word_embeddings": True}),
    ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 16}),
    ("qwen2", {"tie_word_embeddings": True}),
    ("qwen3", {"head_dim": 8}),
    ("gemma", {"head_dim": 8}),
    ("gpt2", {"n_inner": 48}),
    ("stablelm", {"use_qkv_bias": True}),
    ("gpt_neox", {"attention_bias": False}),
]


LEFT_OUT = [
    ("mixtral", ["num_local_experts"]),
    ("mixtral", ["num_key_value_heads", "num_experts_per_tok"]),
    ("qwen3_moe", ["num_experts", "moe_intermediate_size"]),
    ("gpt2", ["n_positions"]),
    ("opt", ["word_embed_proj_dim", "ffn_dim"]),
    ("llama", ["num_key_value_heads", "vocab_size"]),
    *((name, ["num_key_value_heads"]) for name in ("mistral", "smollm3", "starcoder2", "gemma")),
]
IGNORED: dict[str, Any] = {
    "attention_bias": True, "mlp_bias": True, "use_bias": False, "enable_bias": False,
    "num_experts": 3, "ffn_dim": 24, "n_inner": 24, "n_head": 8, "use_parallel_residual": True,
}  # fmt: skip
"""Keys that most classes do not know, and that some of them do."""


@pytest.mark.torch
@pytest.mark.parametrize(("name", "keys"), LEFT_OUT, ids=str)
def test_keys_that_are_left_out_are_as_transformers_has_them(name: str, keys: list[str]) -> None:
    tree = {"num_attention_heads": 4, **config(name)}
    if name == "smollm3":
        tree |= {"hidden_size": 64, "num_attention_heads": 16}
    if name == "mistral":
        tree["num_attention_heads"] = 8
    _compare({key: value for key, value in tree.items() if key not in keys})


@pytest.mark.torch
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "mistral" else pytest.mark.full) for name in FAMILIES],
)
def test_keys_that_a_class_does_not_know_change_nothing(name: str) -> None:
    keys = {"head_dim": 4, **IGNORED}
    for key, value in keys.items():
        _compare(config(name, **{key: value}))


@pytest.mark.torch
@pytest.mark.full
@pytest.mark.parametrize("name", FAMILIES)
def test_any_key_may_be_left_out(name: str) -> None:
    tree = config(name)
    depth: dict[str, Any] = {
        key: tree[key] for key in ("num_hidden_layers", "n_layer") if key in tree
    }
    _compare({"model_type": name, **depth})
    width = ("hidden_size", "n_embd", "word_embed_proj_dim")
    wide: dict[str, Any] = {key: 768 for key in width if key in tree}
    changes = {
        "num_attention_heads": wide,
        "n_head": wide,
        "num_key_value_heads": {**wide, "num_attention_heads": 96},
    }
    for left_out in tree.keys() - depth.keys() - {"model_type", "pad_token_id"}:
        rest = {**tree, **changes.get(left_out, {})}
        _compare({key: value for key, value in rest.items() if key != left_out})


@pytest.mark.torch
@pytest.mark.parametrize(("name", "changes"), CHANGES, ids=str)
def test_parameters_are_those_of_transformers(name: str, changes: dict[str, Any]) -> None:
    _compare(config(name, **changes))


def _compare(tree: dict[str, Any]) -> None:
    """Our parameters with those of transformers; what is not known is not guessed."""
    from zerotools.jobs.jobfile_tables.model import ModelSpec
    from zerotoolsd.trainer.model.meta_model import make_meta_model, read_config
    from zerotoolsd.trainer.model.predict_state_memory import parameters_of

    model = make_meta_model(read_config(ModelSpec(config=tree)))
    expected = parameters_of(model)
    architecture = architecture_of(tree, "config")
    if architecture is None:
        assert tree.get("use_parallel_residual") is True or "word_embed_proj_dim" in tree
        return
    found = architecture.parameters()
    assert Counter(p.shape for p in found) == Counter(p.shape for p in expected)
    outside = [p.shape for p in found if p.block is None]
    assert Counter(outside) == Counter(p.shape for p in expected if p.block is None)


def test_another_architecture_is_not_guessed() -> None:
    assert architecture_of(config("mamba"), "config") is None
    assert architecture_of(config("gpt_neox", use_parallel_residual=False), "config") is None


@pytest.mark.parametrize("value", [0, -1, True, "32", 1.5])
def test_a_size_that_is_none_is_refused(value: object) -> None:
    with pytest.raises(BadRequest, match=r"config: hidden_size = .* is not a positive number"):
        architecture_of(config("llama", hidden_size=value), "config")


def test_sizes_that_no_model_has_are_refused() -> None:
    with pytest.raises(BadRequest, match="has 1000000 layers, but no model has more than 10000"):
        architecture_of(config("llama", num_hidden_layers=10**6), "config")
    with pytest.raises(BadRequest, match="hidden_size = 3 is less than the number of heads, 4"):
        architecture_of(config("llama", hidden_size=3), "config")


def test_a_size_that_is_none_at_all_is_named() -> None:
    with pytest.raises(BadRequest, match=r"config: has no vocab_size, which a llama model needs"):
        architecture_of(config("llama", vocab_size=None), "config")
