"""nf4, fp4 and int8 by bitsandbytes on the CPU."""

from __future__ import annotations

from collections.abc import Iterator

import bitsandbytes
import torch
from bitsandbytes import functional

from tests.golden.quantised_runs.case import Case

_FOUR = {"quant_method": "bitsandbytes", "load_in_4bit": True}
_EIGHT = {"quant_method": "bitsandbytes", "load_in_8bit": True}


def cases() -> Iterator[Case]:
    weight = torch.randn(200, 100, generator=torch.Generator().manual_seed(5)).mul(0.05)
    for name, kind, nested, size in (
        ("nf4", "nf4", False, 64),
        ("nf4-double", "nf4", True, 64),
        ("fp4", "fp4", False, 128),
    ):
        quantised, state = functional.quantize_4bit(
            weight, blocksize=size, quant_type=kind, compress_statistics=nested
        )
        truth = {}
        for dtype in (torch.bfloat16, torch.float16, torch.float32):
            state.dtype = dtype
            truth[dtype] = {"a.weight": functional.dequantize_4bit(quantised, state).clone()}
        parts = state.as_dict(packed=True)
        held = {"a.weight": quantised} | {f"a.weight.{k}": v for k, v in parts.items()}
        yield Case(name, held, {**_FOUR, "bnb_4bit_quant_type": kind}, truth)
    yield _int8(weight[:32])


def _int8(weight: torch.Tensor) -> Case:
    layer = bitsandbytes.nn.Linear8bitLt(100, 32, bias=False, has_fp16_weights=False)
    payload, scales, _ = functional.int8_vectorwise_quant(weight.half())
    layer.weight = bitsandbytes.nn.Int8Params(
        payload, requires_grad=False, has_fp16_weights=False, CB=payload, SCB=scales
    )
    saved = {f"a.{name}": tensor for name, tensor in layer.state_dict().items()}
    back = functional.int8_vectorwise_dequant(payload, scales)
    return Case("int8", saved, _EIGHT, {torch.float32: {"a.weight": back}})
