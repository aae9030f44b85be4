"""Peaks by the names that drivers give to GPUs."""

from __future__ import annotations

import pytest

from zerotools.sensors.peak_flops import peak_flops


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
