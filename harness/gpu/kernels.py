"""Checks which of torch's attention kernels a GPU has, and that their results are equal."""

from __future__ import annotations

from pathlib import Path

from harness.gpu.checks import Found

TOLERANCE = 1e-5
"""Largest difference in fp32, relative to the largest element."""


def attention(device: str, directory: Path) -> Found:
    """Compare attention with repeated key heads and with shared key heads, forward and backward."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    torch.manual_seed(0)
    shapes = ((1, 8, 128, 32), (1, 2, 128, 32), (1, 2, 128, 32))
    query, key, value = (torch.randn(each, device=device, requires_grad=True) for each in shapes)
    found = []
    for is_shared in (True, False):
        keys, values = (
            each if is_shared else each.repeat_interleave(4, dim=1) for each in (key, value)
        )
        result = scaled_dot_product_attention(
            query, keys, values, is_causal=True, enable_gqa=is_shared
        )
        found.append([result, *torch.autograd.grad(result.square().sum(), (query, key, value))])
    apart = max(float((a - b).abs().max() / a.abs().max()) for a, b in zip(*found, strict=True))
    return Found(f"{apart:.1e} apart", apart < TOLERANCE)


def kernels(device: str, directory: Path) -> Found:
    """Compare the fused kernels that support each dtype with the result of `has_flash`."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.functional import scaled_dot_product_attention

    from zerotoolsd.trainer.model.attention_choice import has_flash

    capability, wrong = torch.cuda.get_device_capability(), []
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        query, key = (torch.randn(1, n, 256, 64, device=device, dtype=dtype) for n in (8, 2))
        repeated = key.repeat_interleave(4, dim=1)
        cases = [(SDPBackend.FLASH_ATTENTION, key, has_flash(dtype, capability))]
        if dtype != torch.bfloat16 or has_flash(dtype, capability):
            cases.append((SDPBackend.EFFICIENT_ATTENTION, repeated, True))
        for backend, keys, expected in cases:
            try:
                with sdpa_kernel(backend):
                    shared = {"is_causal": True, "enable_gqa": keys is key}
                    scaled_dot_product_attention(query, keys, keys, **shared)
                taken = True
            except RuntimeError:  # "No available kernel"
                taken = False
            if taken is not expected:
                wrong.append(f"{backend.name} of {dtype} is {'' if taken else 'not '}there")
    return Found("; ".join(wrong) or f"as expected of {capability}", not wrong)
