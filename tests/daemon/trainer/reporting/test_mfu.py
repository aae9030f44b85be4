"""MFU by hand."""

from __future__ import annotations

from typing import Any

import pytest

from harness.launching import TINY_GPT2, TINY_LLAMA

pytestmark = pytest.mark.torch


def config(tree: dict[str, Any]) -> Any:
    from transformers import AutoConfig

    return AutoConfig.for_model(**tree)


def test_the_operations_of_a_token_are_palm_s() -> None:
    """GPT-3 XL: 1.3e9 parameters, 24 layers of 2048, 2048 tokens."""
    from zerotoolsd.trainer.reporting.mfu import Utilization, flops_per_token

    tree = {**TINY_LLAMA, "num_hidden_layers": 24, "hidden_size": 2048, "num_attention_heads": 16}
    flops = flops_per_token(config(tree), (1_300_000_000, 0), 2048)
    assert flops == 6 * 1.3e9 + 12 * 24 * 2048 * 2048
    # 8 A100 at 128,000 tokens/s
    assert Utilization(flops, 8 * 312e12).of(128_000) == pytest.approx(0.4620, abs=1e-4)


def test_frozen_weights_have_no_gradients_and_names_differ() -> None:
    from zerotoolsd.trainer.reporting.mfu import flops_per_token

    attention = 12 * 2 * 32 * 64
    assert flops_per_token(config(TINY_GPT2), (1000, 500), 64) == 6000 + 2000 + attention


@pytest.mark.parametrize(
    "tree",
    [
        {"model_type": "t5"},
        {"model_type": "mixtral", "num_hidden_layers": 2},
        {"model_type": "qwen3_moe", "num_hidden_layers": 2},
    ],
    ids=lambda tree: tree["model_type"],
)
def test_models_that_the_formula_is_not_for(tree: dict[str, Any]) -> None:
    from zerotoolsd.trainer.reporting.mfu import flops_per_token

    assert flops_per_token(config(tree), (1000, 0), 64) is None


@pytest.mark.parametrize(
    ("card", "device", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", "cuda", 8 * 989.4e12),
        ("Double 9000", "cuda", None),
        ("no card", "cpu", None),
    ],
)
def test_the_mfu_of_known_cards_is_measured(
    monkeypatch: pytest.MonkeyPatch, card: str, device: str, peak: float | None
) -> None:
    from types import SimpleNamespace

    import torch

    from zerotoolsd.trainer.reporting.mfu import make_utilization

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: card)
    group: Any = SimpleNamespace(device=torch.device(device, 0), gathered=lambda value: [value] * 8)
    found = make_utilization(group, config(TINY_LLAMA), (1000, 0), 64, "bf16")
    assert (found is None) is (peak is None)
    if found is not None and peak is not None:
        assert found.of(1e6) == pytest.approx((6000 + 12 * 2 * 32 * 64) * 1e6 / peak, rel=0.01)
