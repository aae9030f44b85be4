"""Which layers tensor ranks cut, and what is refused, in one sentence."""

from __future__ import annotations

from typing import Any

import pytest

from harness.launching import TINY_GPT2, TINY_LLAMA
from zerotools.core.errors import BadRequest, Unsupported

pytestmark = pytest.mark.torch


def drawn(**changes: Any) -> Any:
    from zerotools.jobs.jobfile_tables.model import ModelSpec
    from zerotoolsd.trainer.model.meta_model import make_meta_model, read_config

    return make_meta_model(read_config(ModelSpec(config={**TINY_LLAMA, **changes}))).model


def refusal(model: Any, ranks: int) -> str:
    from zerotoolsd.trainer.tensor_parallel.plan_layer_cuts import layer_cuts

    with pytest.raises((BadRequest, Unsupported)) as caught:
        layer_cuts(model, ranks)
    return str(caught.value)


def test_matrices_are_cut_as_the_plan_says_and_all_else_is_whole() -> None:
    from zerotoolsd.trainer.tensor_parallel.plan_layer_cuts import layer_cuts

    found = layer_cuts(drawn(attention_bias=True), 2)
    block = "model.layers.1"
    assert {
        name.removeprefix(f"{block}."): dimension
        for name, dimension in found.dimensions.items()
        if name.startswith(block)
    } == {
        "self_attn.q_proj.weight": 0,
        "self_attn.q_proj.bias": 0,
        "self_attn.k_proj.weight": 0,
        "self_attn.k_proj.bias": 0,
        "self_attn.v_proj.weight": 0,
        "self_attn.v_proj.bias": 0,
        "self_attn.o_proj.weight": 1,
        "mlp.gate_proj.weight": 0,
        "mlp.up_proj.weight": 0,
        "mlp.down_proj.weight": 1,
    }
    outside = {name for name in found.dimensions if not name.startswith("model.layers")}
    assert outside == {"lm_head.weight"}
    assert found.notes == ()


def test_one_rank_cuts_nothing_of_any_model() -> None:
    from zerotoolsd.trainer.tensor_parallel.plan_layer_cuts import NO_CUTS, layer_cuts

    assert layer_cuts(drawn(**TINY_GPT2), 1) is NO_CUTS


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"tie_word_embeddings": True}, "because another layer has the same weight"),
        ({"vocab_size": 257}, "because they do not divide its 257 rows"),
    ],
)
def test_a_head_that_cannot_be_cut_stays_whole_and_is_named(
    changes: dict[str, Any], why: str
) -> None:
    from zerotoolsd.trainer.tensor_parallel.plan_layer_cuts import layer_cuts

    found = layer_cuts(drawn(**changes), 2)
    assert found.notes == (f"note: lm_head is not split among the 2 tensor ranks, {why}",)
    assert "lm_head.weight" not in found.dimensions


@pytest.mark.parametrize(
    ("changes", "ranks", "said"),
    [
        (
            {},
            4,
            "zero.tensor_ranks = 4: the model has 2 key-value heads, which 4 ranks do not divide "
            "evenly; set zero.tensor_ranks to 2, or remove it",
        ),
        ({}, 3, "the model has 4 attention heads, which 3 ranks do not divide evenly"),
        ({"num_key_value_heads": 1}, 2, "1 key-value head, which 2 ranks do not divide evenly;"),
        (
            {"intermediate_size": 65},
            2,
            "2 ranks do not evenly divide the 65 outputs of model.layers.0.mlp.gate_proj; set "
            "zero.tensor_ranks to 5 or 13, or remove it",
        ),
        (TINY_GPT2, 2, "no plan (tp_plan) to split the layers of GPT2LMHeadM"),
        (
            {"model_type": "mixtral"},
            2,
            "splits model.layers.0.mlp.experts.gate_up_proj with the style",
        ),
    ],
)
def test_what_ranks_cannot_share_is_refused(changes: dict[str, Any], ranks: int, said: str) -> None:
    found = refusal(drawn(**changes), ranks)
    assert said in found
    assert found.startswith(f"zero.tensor_ranks = {ranks}: ")


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (
            {"model.layers.*.mlp.up_proj": "sequence_parallel"},
            "with the style 'sequence_parallel', which",
        ),
        (
            {"model.layers.*.mlp.up_proj.weight": "colwise"},
            "up_proj.weight with the style 'colwise'",
        ),
        ({"model.layers.*.input_layernorm": "colwise"}, "is a LlamaRMSNorm, but only layers"),
        ({"lm_head": "colwise_rep"}, "has no plan (tp_plan)"),
        ({}, "has no plan (tp_plan)"),
        (None, "has no plan (tp_plan)"),
    ],
)
def test_plans_that_say_something_else_are_refused(plan: Any, said: str) -> None:
    model = drawn()
    model._tp_plan = plan
    assert said in refusal(model, 2)


def test_a_plan_that_forgets_a_weight_beside_cut_ones_is_refused() -> None:
    model = drawn(model_type="qwen3", head_dim=8)
    model._tp_plan = {k: v for k, v in model._tp_plan.items() if not k.endswith("_norm")}
    found = refusal(model, 2)
    assert "does not list model.layers.0.self_attn.q_norm.weight;" in found


def test_names_of_older_plans_mean_the_same() -> None:
    from zerotoolsd.trainer.tensor_parallel.plan_layer_cuts import layer_cuts

    model = drawn()
    wanted = layer_cuts(model, 2)
    model._tp_plan = {**model._tp_plan, "lm_head": "colwise_rep"}
    assert layer_cuts(model, 2) == wanted


@pytest.mark.peft
def test_an_adapter_is_cut_as_its_layer() -> None:
    import torch

    from zerotools.jobs.jobfile_tables.lora import LoraSpec
    from zerotools.jobs.jobfile_tables.model import ModelSpec
    from zerotoolsd.trainer.check_tensor_parallel import fold_ranks
    from zerotoolsd.trainer.model.add_lora_adapters import add_adapters
    from zerotoolsd.trainer.model.meta_model import read_config
    from zerotoolsd.trainer.model.tiny_model import small_model
    from zerotoolsd.trainer.tensor_parallel.plan_layer_cuts import layer_cuts

    torch.manual_seed(0)
    model: Any = small_model(read_config(ModelSpec(config=TINY_LLAMA)))
    add_adapters(model, LoraSpec(rank=3, target_modules=("q_proj", "down_proj", "lm_head")))
    for module in (each for name, each in model.named_modules() if "lora_" in name):
        module.to_empty(device="cpu")
        for parameter in module.parameters():
            parameter.data = torch.randn(parameter.shape) / 5
    cuts = layer_cuts(model, 2)
    adapters = {name: cut for name, cut in cuts.dimensions.items() if "lora_" in name}
    assert adapters == {
        f"model.layers.{block}.{name}.default.weight": dimension
        for block in range(model.config.num_hidden_layers)
        for name, dimension in (("self_attn.q_proj.lora_B", 0), ("mlp.down_proj.lora_A", 1))
    }
    assert cuts.dimensions["lm_head.base_layer.weight"] == 0
    ids = torch.arange(12)[None]
    with torch.no_grad():
        wanted = model(input_ids=ids, use_cache=False).logits
        fold_ranks(model, cuts)
        found = model(input_ids=ids.repeat(2, 1), use_cache=False).logits
    assert float((found - wanted).abs().max() / wanted.abs().max()) < 1e-5


@pytest.mark.parametrize("name", ["deepseek_v2", "gpt_oss", "lfm2", "apertus"])
def test_what_a_plan_shares_otherwise_or_hardly_is_refused(name: str) -> None:
    from benchmarks.architectures.configs import tiny_config
    from zerotoolsd.trainer.model.meta_model import make_meta_model

    said = refusal(make_meta_model(tiny_config(name)).model, 2)
    assert said.startswith("zero.tensor_ranks = 2: transformers")
    assert said.endswith("remove zero.tensor_ranks")
