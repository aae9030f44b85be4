"""Weights as vLLM's llm-compressor saves them, by compressed-tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from compressed_tensors.compressors.base import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme

from tests.golden.quantised_runs.case import Case

_FLOAT8 = {"num_bits": 8, "type": "float", "symmetric": True}
_INT8 = {"num_bits": 8, "type": "int", "symmetric": True}
_FLOAT4 = {"num_bits": 4, "type": "float", "symmetric": True}


def cases() -> Iterator[Case]:
    weight = torch.randn(48, 160, generator=torch.Generator().manual_seed(3)).mul(0.05)
    large = torch.randn(200, 160, generator=torch.Generator().manual_seed(4)).mul(0.05)
    tall = weight.abs().amax(1, keepdim=True)
    one = weight.abs().amax().reshape(1)
    yield _case("float-tensor", "float-quantized", weight, one / 448, _FLOAT8, strategy="tensor")
    yield _case("float-channel", "float-quantized", weight, tall / 448, _FLOAT8, strategy="channel")
    yield _case("int8-channel", "int-quantized", weight, tall / 127, _INT8, strategy="channel")
    groups = weight.reshape(48, 5, 32).abs().amax(2)
    powers = torch.exp2(torch.ceil(torch.log2(groups)))
    group: dict[str, Any] = {"strategy": "group", "group_size": 32}
    yield _case("float-group", "float-quantized", weight, groups / 448, _FLOAT8, **group)
    yield _case("mxfp8", "mxfp8-quantized", weight, powers / 256, _FLOAT8, **group)
    yield _case("mxfp4", "mxfp4-pack-quantized", weight, powers / 4, _FLOAT4, **group)
    blocks = torch.stack([
        torch.stack([part.abs().amax() for part in rows.split(128, 1)])
        for rows in large.split(128, 0)
    ])  # fmt: skip
    structure: dict[str, Any] = {"strategy": "block", "block_structure": [128, 128]}
    yield _case("float-block", "float-quantized", large, blocks / 448, _FLOAT8, **structure)
    whole = 448 * 6 / weight.abs().amax().reshape(1)
    small = weight.reshape(48, 10, 16).abs().amax(2) / 6 * whole
    small = small.to(torch.float8_e4m3fn).float()
    sixteen: dict[str, Any] = {"strategy": "tensor_group", "group_size": 16}
    yield _case("nvfp4", "nvfp4-pack-quantized", weight, small, _FLOAT4, whole, **sixteen)


def _case(
    name: str,
    form: str,
    weight: torch.Tensor,
    scale: torch.Tensor,
    kind: dict[str, Any],
    whole: torch.Tensor | None = None,
    **shape: Any,
) -> Case:
    given = {**kind, **shape}
    if form.startswith("mx"):
        given["scale_dtype"] = torch.uint8
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**given))
    compressor = BaseCompressor.get_value_from_registry(form)
    plain = {"weight": weight, "weight_scale": scale}
    if whole is not None:
        plain["weight_global_scale"] = whole
    tensors = compressor.compress(plain, scheme)
    back = compressor.decompress(dict(tensors), scheme)["weight"]
    weights = scheme.weights.model_dump(mode="json") if scheme.weights else {}
    settings = {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
    }
    held = {f"a.{part}": tensor for part, tensor in tensors.items()}
    return Case(name, held, settings, {back.dtype: {"a.weight": back}})
