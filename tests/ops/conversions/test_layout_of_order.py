"""Numbered optimizer state of a model that transformers holds in another layout than its files."""

from __future__ import annotations

import pytest

from tests.formats.elements import elements
from tests.golden_files import GOLDEN
from zerotools import formats
from zerotools.core.checkpoint import Key
from zerotools.core.errors import BadRequest
from zerotools.ops.conversions.layout_of_order import with_names_of_model
from zerotools.ops.resume_from_other_program.order_option import AskedOrder

EXPERTS = GOLDEN / "continued/hf-trainer-experts/checkpoint/checkpoint-3"
LAYER = (
    *(f"self_attn.{part}_proj.weight" for part in "qkvo"),
    "mlp.gate.weight",
    "mlp.experts.gate_up_proj",
    "mlp.experts.down_proj",
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
)
NAMES = [
    "model.embed_tokens.weight",
    *(f"model.layers.{number}.{name}" for number in range(2) for name in LAYER),
    "model.norm.weight",
    "lm_head.weight",
]
"""Of a Mixtral in memory, in the order in which transformers 5 registers them."""


@pytest.mark.torch
def test_state_of_experts_gets_the_names_of_the_model_in_memory() -> None:
    import torch

    read = formats.read(EXPERTS)
    joined = read, formats.training_of(read)
    state = torch.load(EXPERTS / "optimizer.pt")["state"]
    vectors = [name for name in NAMES if "norm" in name]
    order = [*(name for name in NAMES if name not in vectors), *vectors]
    shapes = {name: tuple(state[order.index(name)]["exp_avg"].shape) for name in NAMES}
    found, notes = with_names_of_model(*joined, AskedOrder([NAMES], "a model", shapes))
    assert "the layout hf-fused" in notes[0]
    for number, name in enumerate(order):
        for role in ("exp_avg", "exp_avg_sq"):
            own = elements(found.checkpoint, Key(name, role))
            assert (own == state[number][role].numpy()).all(), name
    assert {k.name for k in found.checkpoint.tensors if k.role == "param"} == set(NAMES)
    assert [len(group) for group in found.groups] == [len(order) - len(vectors), len(vectors)]


def test_the_order_of_another_model_is_refused() -> None:
    read = formats.read(EXPERTS)
    joined = read, formats.training_of(read)
    other = [f"{name}.other" for name in NAMES]
    with pytest.raises(BadRequest, match="which is not a weight of"):
        with_names_of_model(*joined, AskedOrder([other], "a model", dict.fromkeys(other, (2, 2))))
