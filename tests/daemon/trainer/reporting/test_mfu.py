"""MFU by hand."""

from __future__ import annotations

from typing import Any

import pytest

from harness.launching import TINY_GPT2, TINY_LLAMA
from zerotoolsd.trainer.reporting.mfu import peak_flops

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


@pytest.mark.parametrize(
    ("name", "half", "fp32"),
    [
        ("NVIDIA A100-SXM4-80GB", 312, 19.5),
        ("A100-PCIE-40GB", 312, 19.5),
        ("NVIDIA A100 80GB PCIe", 312, 19.5),
        ("NVIDIA A800-SXM4-80GB", 312, 19.5),
        ("NVIDIA H100 80GB HBM3", 989.4, 66.9),
        ("NVIDIA H100 PCIe", 756.5, 51.2),
        ("NVIDIA H100 NVL", 835.5, 60),
        ("NVIDIA H200", 989.4, 66.9),
        ("NVIDIA L4", 121, 30.3),
        ("NVIDIA L40S", 362, 91.6),
        ("NVIDIA GeForce RTX 3090", 71, 35.6),
        ("NVIDIA GeForce RTX 4090", 165.2, 82.6),
    ],
)
def test_known_gpus(name: str, half: float, fp32: float) -> None:
    assert peak_flops(name, "bf16") == peak_flops(name, "fp16") == half * 1e12
    assert peak_flops(name, "fp32") == fp32 * 1e12


@pytest.mark.parametrize("name", ["Tesla V100-SXM2-32GB", "Tesla V100-PCIE-16GB", "Tesla T4"])
def test_gpus_without_bf16(name: str) -> None:
    assert peak_flops(name, "bf16") is None
    assert peak_flops(name, "fp16") is not None


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 D",
        "AMD Instinct MI300X",
        "",
    ],
)
def test_gpus_that_are_not_known(name: str) -> None:
    assert peak_flops(name, "fp16") is None
