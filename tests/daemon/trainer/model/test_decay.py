"""The weight decay is for the parameters that transformers' Trainer gives one to."""

from __future__ import annotations

from typing import Any

import pytest

from zerotools.runs.record import JobRecord, ModelRecord, OptimizerGroup, OptimizerRecord

pytestmark = pytest.mark.torch
TELLING = {
    "gpt_oss": {"experts.down_proj_bias": False, "self_attn.sinks": True},
    "mamba": {"mixer.A_log": True, "mixer.D": True, "mixer.conv1d.bias": False},
    "opt": {"self_attn_layer_norm.weight": False, "embed_tokens.weight": True},
    "recurrent_gemma": {"rg_lru.input_gate_bias": False, "rg_lru.recurrent_param": True},
    "qwen3_next": {"linear_attn.A_log": True, "linear_attn.dt_bias": False},
    "deepseek_v3": {"kv_a_layernorm.weight": False, "mlp.gate.weight": True},
    "gpt2": {"ln_f.weight": False, "attn.c_attn.weight": True},
}
"""By architecture: how the names of some parameters end, and whether they decay."""


def drawn(name: str) -> Any:
    from benchmarks.architectures.configs import tiny_config
    from zerotoolsd.trainer.model.meta_model import draw

    return draw(tiny_config(name)).model


@pytest.mark.dear(10, "the Trainer itself is imported, and seven architectures")
@pytest.mark.parametrize("name", sorted(TELLING))
def test_the_names_are_those_of_the_trainer(name: str) -> None:
    from transformers import Trainer

    from zerotoolsd.trainer.model.decay import decayed_names

    model = drawn(name)
    theirs = Trainer.get_decay_parameter_names(None, model)  # type: ignore[arg-type]
    ours = decayed_names(model, "names")
    assert ours == {each for each, _ in model.named_parameters()} & set(theirs)
    for ending, decays in TELLING[name].items():
        found = [each for each, _ in model.named_parameters() if each.endswith(ending)]
        assert found
        assert {each in ours for each in found} == {decays}


def record(*groups: tuple[float, tuple[str, ...]]) -> JobRecord:
    made = tuple(
        OptimizerGroup(lr=1.0, weight_decay=decay, params=names) for decay, names in groups
    )
    return JobRecord(
        step=1,
        steps_total=2,
        world_size=1,
        stage=0,
        precision="fp32",
        seed=0,
        consumed_sequences=0,
        batch_size=1,
        sequence_length=1,
        optimizer=OptimizerRecord("adamw", made),
        model=ModelRecord(1, 0),
    )


def test_a_run_that_goes_on_keeps_its_groups() -> None:
    import torch

    from zerotoolsd.trainer.model.decay import decayed_names

    model = torch.nn.Linear(2, 2)  # by both rules the weight decays, and the bias does not
    swapped = record((0.1, ("bias",)), (0.0, ("weight",)))
    assert decayed_names(model, "names", swapped) == {"bias"}
    assert decayed_names(model, "names", record((0.1, ("bias", "weight")))) == {"bias", "weight"}
    # Nothing decayed: of two groups the first is that of the weights; of one nobody knows.
    assert decayed_names(model, "names", record((0.0, ("bias",)), (0.0, ("weight",)))) == {"bias"}
    assert decayed_names(model, "shapes", record((0.0, ("bias", "weight")))) == {"weight"}
    assert decayed_names(model, "shapes", record((0.1, ()), (0.0, ()))) == {"weight"}


def test_by_shapes_only_the_dimensions_count() -> None:
    from zerotoolsd.trainer.model.decay import decayed_names

    model = drawn("gpt_oss")
    matrices = {name for name, p in model.named_parameters() if p.dim() >= 2}
    assert decayed_names(model, "shapes") == matrices
    assert any(name.endswith("down_proj_bias") for name in matrices)
