"""MXFP8 and NVFP4 by torchao, under the names that ModelOpt gives to NVFP4."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.prototype.mx_formats.mx_tensor import to_dtype, to_mx
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale

from tests.golden.quantised_runs.case import Case

_MXFP8 = {"quant_method": "mxfp8", "weight_block_size": [1, 32], "scale_fmt": "ue8m0"}
_NVFP4 = {"quant_method": "modelopt", "quant_algo": "NVFP4"}


def cases() -> Iterator[Case]:
    weight = torch.randn(64, 128, generator=torch.Generator().manual_seed(6)).mul(0.05)
    scales, payload = to_mx(weight, torch.float8_e4m3fn, 32, ScaleCalculationMode.RCEIL)
    scales = scales.view(torch.uint8).reshape(64, 4)
    tensors = {"a.weight": payload, "a.weight_scale_inv": scales}
    truth = {
        dtype: {
            "a.weight": to_dtype(
                payload, scales.view(torch.float8_e8m0fnu), torch.float8_e4m3fn, 32, dtype
            )
        }
        for dtype in (torch.bfloat16, torch.float32)
    }
    yield Case("mxfp8", tensors, _MXFP8, truth, plain={"a.weight": weight}, quantised=tensors)
    whole = per_tensor_amax_to_scale(weight.abs().max())
    four = NVFP4Tensor.to_nvfp4(weight, 16, per_tensor_scale=whole)
    truth = {
        dtype: {"a.weight": four.dequantize(dtype)} for dtype in (torch.bfloat16, torch.float32)
    }
    tensors = {
        "a.weight": four.qdata.view(torch.uint8),
        "a.weight_scale": four.scale.view(torch.float8_e4m3fn).reshape(64, 8),
        "a.weight_scale_2": four.per_tensor_scale,
    }
    yield Case("nvfp4", tensors, _NVFP4, truth)
