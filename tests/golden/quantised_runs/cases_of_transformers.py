"""fp8 blocks, MXFP8 and gpt-oss' MXFP4 by transformers itself."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from transformers.integrations.finegrained_fp8 import Fp8Dequantize, Fp8Quantize
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from tests.golden.quantised_runs.case import Case

FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"}
MXFP8 = {"quant_method": "mxfp8", "weight_block_size": [1, 32], "scale_fmt": "ue8m0"}


def quantiser(config: dict[str, Any]) -> Fp8Quantize:
    """transformers' operation, for a config."""
    asked = {"scale_fmt": "float", **config}
    return Fp8Quantize(SimpleNamespace(quantization_config=SimpleNamespace(**asked)))


def cases() -> Iterator[Case]:
    weight = torch.randn(256, 128, generator=torch.Generator().manual_seed(1)).mul(0.05)
    weight[:128, :128] = 0
    for name, config in (("fp8-blocks", FP8), ("mxfp8", MXFP8)):
        plain = weight[100:164] if name == "mxfp8" else weight
        made = quantiser(config)._quantize_one("a.weight", plain)
        scales = made["a.weight_scale_inv"]
        if name == "mxfp8":  # as checkpoints have them
            scales = scales.view(torch.uint8)
        back = Fp8Dequantize(None)._dequantize_one
        truth = {
            dtype: {"a.weight": back(made["a.weight"], scales, dtype)}
            for dtype in (torch.bfloat16, torch.float32)
        }
        tensors = {
            "a.weight": made["a.weight"],
            "a.weight_scale_inv": scales,
            "norm.weight": torch.ones(8, dtype=torch.bfloat16),
        }
        quantised = {"a.weight": made["a.weight"], "a.weight_scale_inv": scales}
        yield Case(name, tensors, config, truth, plain={"a.weight": plain}, quantised=quantised)
    yield _experts()


def _experts() -> Case:
    chance = torch.Generator().manual_seed(2)
    blocks = torch.randint(0, 256, (2, 24, 3, 16), dtype=torch.uint8, generator=chance)
    scales = torch.randint(110, 134, (2, 24, 3), dtype=torch.uint8, generator=chance)
    name = "model.layers.0.mlp.experts.down_proj"
    truth = {
        dtype: {name: convert_moe_packed_tensors(blocks, scales, dtype=dtype)}
        for dtype in (torch.bfloat16, torch.float32)
    }
    tensors = {f"{name}_blocks": blocks, f"{name}_scales": scales}
    return Case("mxfp4-experts", tensors, {"quant_method": "mxfp4"}, truth)
