"""What Muon updates: matrices that are neither embeddings nor the head."""

from __future__ import annotations

from typing import Any

import pytest

from harness.launching import TINY_GPT2, TINY_LLAMA
from zerotools.core.errors import BadRequest
from zerotools.jobs.tables.lora import LoraSpec
from zerotools.jobs.tables.train import TrainSpec

pytestmark = pytest.mark.torch
MUON = TrainSpec(steps=1, batch_size=1, optimizer="muon")


def drawn(config: dict[str, Any], lora: LoraSpec | None = None) -> Any:
    from transformers import AutoConfig

    from zerotoolsd.trainer.model.meta_model import draw

    kind = config["model_type"]
    return draw(AutoConfig.for_model(**{**config, "model_type": kind}), lora or LoraSpec()).model


@pytest.mark.parametrize("tied", [True, False])
def test_embeddings_head_and_vectors_are_left_out(tied: bool) -> None:
    from zerotoolsd.trainer.model.matrices import matrices_of

    model = drawn({**TINY_LLAMA, "tie_word_embeddings": tied})
    found = matrices_of(model)
    assert len(found) == 2 * 7
    assert all(".layers." in name and "norm" not in name for name in found)
    positions = matrices_of(drawn(TINY_GPT2))
    assert len(positions) == 2 * 4
    assert all(".h." in name and name.endswith(".weight") for name in positions)


@pytest.mark.peft
def test_of_adapters_both_halves() -> None:
    from zerotoolsd.trainer.model.matrices import matrices_of

    found = matrices_of(drawn(TINY_LLAMA, LoraSpec(rank=2, target_modules=("q_proj",))))
    assert sorted(name.rsplit(".", 3)[1] for name in found) == [
        "lora_A",
        "lora_A",
        "lora_B",
        "lora_B",
    ]


def test_a_model_without_matrices_is_refused() -> None:
    import torch

    from zerotoolsd.trainer.model.matrices import check_matrices

    model = torch.nn.Sequential(torch.nn.Embedding(4, 3), torch.nn.LayerNorm(3))
    with pytest.raises(BadRequest, match=r'"muon": the model trains no matrix.*set "adamw"'):
        check_matrices(MUON, model)
    check_matrices(TrainSpec(steps=1, batch_size=1), model)
