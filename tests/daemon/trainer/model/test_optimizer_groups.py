"""What decays is what transformers' Trainer has decay; what Muon updates are matrices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.launching import TINY_GPT2, TINY_LLAMA
from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile_tables.lora import LoraSpec
from zerotools.jobs.jobfile_tables.train import TrainSpec
from zerotools.runs.training_record import (
    JobRecord,
    ModelRecord,
    OptimizerGroup,
    OptimizerRecord,
)

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
    from zerotoolsd.trainer.model.meta_model import make_meta_model

    return make_meta_model(tiny_config(name)).model


@pytest.mark.dear(10, "the Trainer itself is imported, and seven architectures")
@pytest.mark.parametrize("name", sorted(TELLING))
def test_the_names_are_those_of_the_trainer(name: str) -> None:
    from transformers import Trainer

    from zerotoolsd.trainer.model.optimizer_groups import decayed_names

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

    from zerotoolsd.trainer.model.optimizer_groups import decayed_names

    model = torch.nn.Linear(2, 2)  # by both rules the weight decays, and the bias does not
    swapped = record((0.1, ("bias",)), (0.0, ("weight",)))
    assert decayed_names(model, "names", swapped) == {"bias"}
    assert decayed_names(model, "names", record((0.1, ("bias", "weight")))) == {"bias", "weight"}
    # Nothing decayed: of two groups the first is that of the weights; of one nobody knows.
    assert decayed_names(model, "names", record((0.0, ("bias",)), (0.0, ("weight",)))) == {"bias"}
    assert decayed_names(model, "shapes", record((0.0, ("bias", "weight")))) == {"weight"}
    assert decayed_names(model, "shapes", record((0.1, ()), (0.0, ()))) == {"weight"}


def test_of_two_optimizers_without_a_decay_nobody_knows() -> None:
    import torch

    from zerotoolsd.trainer.model.optimizer_groups import decayed_names

    model = torch.nn.Linear(2, 2)
    of_muon = OptimizerGroup(lr=1.0, weight_decay=0.0, params=("weight",), momentum=0.95)
    of_adam = OptimizerGroup(lr=1.0, weight_decay=0.0, params=("bias",), betas=(0.9, 0.95))
    saved = replace(record(), optimizer=OptimizerRecord("muon", (of_muon, of_adam)))
    assert decayed_names(model, "names", saved) == {"weight"}
    adam_first = replace(saved, optimizer=OptimizerRecord("muon", (of_adam, of_muon)))
    assert decayed_names(model, "names", adam_first) == {"weight"}


def test_by_shapes_only_the_dimensions_count() -> None:
    from zerotoolsd.trainer.model.optimizer_groups import decayed_names

    model = drawn("gpt_oss")
    matrices = {name for name, p in model.named_parameters() if p.dim() >= 2}
    assert decayed_names(model, "shapes") == matrices
    assert any(name.endswith("down_proj_bias") for name in matrices)


MUON = TrainSpec(steps=1, batch_size=1, optimizer="muon")


def model_of(config: dict[str, Any], lora: LoraSpec | None = None) -> Any:
    from transformers import AutoConfig

    from zerotoolsd.trainer.model.meta_model import make_meta_model

    kind = config["model_type"]
    return make_meta_model(
        AutoConfig.for_model(**{**config, "model_type": kind}), lora or LoraSpec()
    ).model


@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_head_and_vectors_are_left_out(tied: bool) -> None:
    from zerotoolsd.trainer.model.optimizer_groups import muon_names

    model = model_of({**TINY_LLAMA, "tie_word_embeddings": tied})
    found = muon_names(model)
    assert len(found) == 2 * 7
    assert all(".layers." in name and "norm" not in name for name in found)
    positions = muon_names(model_of(TINY_GPT2))
    assert len(positions) == 2 * 4
    assert all(".h." in name and name.endswith(".weight") for name in positions)


@pytest.mark.peft
def test_of_adapters_both_halves() -> None:
    from zerotoolsd.trainer.model.optimizer_groups import muon_names

    found = muon_names(model_of(TINY_LLAMA, LoraSpec(rank=2, target_modules=("q_proj",))))
    assert sorted(name.rsplit(".", 3)[1] for name in found) == [
        "lora_A",
        "lora_A",
        "lora_B",
        "lora_B",
    ]


def test_a_model_without_matrices_is_refused() -> None:
    import torch

    from zerotoolsd.trainer.model.optimizer_groups import check_matrices

    model = torch.nn.Sequential(torch.nn.Embedding(4, 3), torch.nn.LayerNorm(3))
    with pytest.raises(BadRequest, match=r'"muon": Muon .* trains no such matrix; set .*"adamw"'):
        check_matrices(MUON, model)
    check_matrices(TrainSpec(steps=1, batch_size=1), model)
