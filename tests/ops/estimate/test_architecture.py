"""The parameters of known architectures are those that transformers makes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.ops.estimate.tiny_configs import config
from zerotools.core.errors import BadRequest
from zerotools.ops.estimate.architecture import FAMILIES, architecture_of

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


@pytest.mark.torch
@pytest.mark.parametrize(("name", "changes"), CHANGES, ids=str)
def test_parameters_are_those_of_transformers(name: str, changes: dict[str, Any]) -> None:
    from zerotools.jobs.tables.model import ModelSpec
    from zerotoolsd.trainer.model.memory_estimate import parameters_of
    from zerotoolsd.trainer.model.meta_model import draw, read_config

    tree = config(name, **changes)
    model = draw(read_config(ModelSpec(config=tree)))
    expected = parameters_of(model)
    architecture = architecture_of(tree, "config")
    assert architecture is not None
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
    with pytest.raises(BadRequest, match="1000000 layers are more than the 10000"):
        architecture_of(config("llama", num_hidden_layers=10**6), "config")
    with pytest.raises(BadRequest, match="hidden_size = 3 is less than the 4 heads"):
        architecture_of(config("llama", hidden_size=3), "config")


def test_a_size_that_is_missing_is_named() -> None:
    tree = config("llama")
    del tree["vocab_size"]
    with pytest.raises(BadRequest, match=r"config: has no vocab_size, which a llama model needs"):
        architecture_of(tree, "config")
