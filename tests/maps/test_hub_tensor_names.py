"""The names that zerotools knows, against those of models that transformers builds."""

from __future__ import annotations

from typing import Any

import pytest

from tests.maps.models import CONFIGS, NAMED, built_without_values
from tests.matrices import FULL
from zerotools.maps.hub_tensor_names import ModelNames, NameFaults, names_of_model

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "intermediate_size": 12,
    "vocab_size": 20,
}
LAYER = {
    "input_layernorm.weight": (8,),
    "self_attn.q_proj.weight": (8, 8),
    "self_attn.k_proj.weight": (8, 8),
    "self_attn.v_proj.weight": (8, 8),
    "self_attn.o_proj.weight": (8, 8),
    "post_attention_layernorm.weight": (8,),
    "mlp.gate_proj.weight": (12, 8),
    "mlp.up_proj.weight": (12, 8),
    "mlp.down_proj.weight": (8, 12),
}
BODY: dict[str, tuple[int, ...]] = {
    "model.embed_tokens.weight": (20, 8),
    **{f"model.layers.0.{name}": shape for name, shape in LAYER.items()},
    "model.norm.weight": (8,),
}
HEAD: dict[str, tuple[int, ...]] = {"lm_head.weight": (20, 8)}


def known(*, is_tied: bool = False, **config: Any) -> ModelNames:
    found = names_of_model({**LLAMA, **config}, is_tied=is_tied)
    assert found is not None
    return found


@pytest.mark.torch
@pytest.mark.parametrize("is_tied", [False, True])
def test_every_family_has_the_names_and_shapes_that_transformers_builds(is_tied: bool) -> None:
    pytest.importorskip("transformers")
    families = (*CONFIGS, *NAMED)
    for name in families if FULL else families[is_tied::2]:
        config, shapes, ties = built_without_values(name, tie_word_embeddings=is_tied)
        own = names_of_model(config, is_tied=is_tied)
        assert own is not None, name
        assert own.faults_of(shapes) == NameFaults(), name
        for lost in [*shapes][:: 1 if FULL else 4]:
            faults = own.faults_of({key: s for key, s in shapes.items() if key != lost})
            assert bool(faults.count) is (lost not in ties), (name, lost)


def test_the_head_may_be_missing_where_it_is_tied() -> None:
    assert known().faults_of(BODY).missing == ("lm_head.weight",)
    assert known(is_tied=True).faults_of(BODY) == NameFaults()
    assert known(is_tied=True).ties == {"lm_head.weight": "model.embed_tokens.weight"}


def test_a_model_without_a_head_has_shorter_names_and_none_for_the_head() -> None:
    short = {name.removeprefix("model."): shape for name, shape in BODY.items()}
    base = known(architectures=["LlamaModel"])
    assert base.faults_of(short) == base.faults_of(BODY) == NameFaults()
    assert base.faults_of({**short, "h.weight": (1,)}).unexpected == ("h.weight",)


def test_a_classifier_has_scores_in_place_of_the_head() -> None:
    scored = known(architectures=["LlamaForSequenceClassification"], id2label={"0": "A"})
    assert scored.faults_of({**BODY, "score.weight": (1, 8)}) == NameFaults()
    assert scored.faults_of(BODY).missing == ("score.weight",)
    assert scored.faults_of({**BODY, "score.weight": (2, 8)}).wrong == (
        ("score.weight", (2, 8), (1, 8)),
    )
    assert scored.faults_of({**BODY, **HEAD, "score.weight": (1, 8)}).unexpected == (*HEAD,)


def test_buffers_of_old_releases_are_no_weights() -> None:
    old = {"model.layers.0.self_attn.rotary_emb.inv_freq": (2,)}
    assert known().faults_of({**BODY, **HEAD, **old}) == NameFaults()


def test_nothing_is_said_of_other_models() -> None:
    for config in (
        {"model_type": "other"},
        {},
        {**LLAMA, "architectures": ["LlamaForQuestionAnswering"]},
        {**LLAMA, "text_config": {"hidden_size": 8}},
    ):
        assert names_of_model(config, is_tied=False) is None
