"""Adapters are counted as peft makes them."""

from __future__ import annotations

import pytest

from tests.ops.estimate.tiny_configs import config
from zerotools.ops.estimate.adapters import with_adapters
from zerotools.ops.estimate.model_shape import of_config


@pytest.mark.peft
@pytest.mark.torch
@pytest.mark.parametrize(
    ("name", "targets"),
    [
        ("llama", ()),
        ("llama", ("q_proj", "k_proj", "down_proj")),
        ("qwen2", ("all-linear",)),
        ("gpt2", ()),
        ("gpt_neox", ()),
        ("phi3", ("qkv_proj", "o_proj", "gate_up_proj", "down_proj")),
    ],
    ids=str,
)
def test_as_many_as_peft_has(name: str, targets: tuple[str, ...]) -> None:
    from zerotools.jobs.tables.lora import LoraSpec
    from zerotools.jobs.tables.model import ModelSpec
    from zerotoolsd.trainer.model.meta_model import draw, read_config

    tree = config(name)
    found = with_adapters(of_config(tree, "config"), 4, targets)
    if targets == ("all-linear",):
        targets = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
    model = draw(read_config(ModelSpec(config=tree)), LoraSpec(rank=4, target_modules=targets))
    trained = sum(p.numel for p in found.parameters if p.is_trained)
    frozen = sum(p.numel for p in found.parameters if not p.is_trained)
    assert (trained, frozen) == model.parameter_count()


def test_of_an_unknown_architecture_they_are_not_counted() -> None:
    from dataclasses import replace

    model = replace(of_config(config("llama"), "config"), architecture=None)
    found = with_adapters(model, 4)
    assert not any(p.is_trained for p in found.parameters)
    assert "adapters are not counted" in found.notes[-1]


def test_matrices_of_blocks_are_packed_and_nothing_else() -> None:
    tree = config("llama")
    found = with_adapters(of_config(tree, "config"), 4, packs_frozen=True)
    packed = [each for each in found.parameters if each.is_packed]
    assert len(packed) == 7 * tree["num_hidden_layers"]
    assert not any(each.is_trained or each.block is None for each in packed)
