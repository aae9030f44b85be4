"""Which attention kernel a GPU takes, by what it is told of types, cards and heads."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = pytest.mark.torch


@pytest.fixture
def theirs() -> Iterator[Any]:
    """transformers' module, which is afterwards as it was."""
    from transformers.integrations import sdpa_attention

    before = sdpa_attention.use_gqa_in_sdpa
    yield sdpa_attention
    sdpa_attention.use_gqa_in_sdpa = before


@pytest.mark.parametrize(
    ("dtype", "capability", "device", "shared"),
    [
        ("float32", (9, 0), "cuda", False),
        ("float16", (7, 0), "cuda", False),
        ("float16", (7, 5), "cuda", False),
        ("float16", (8, 0), "cuda", True),
        ("bfloat16", (12, 0), "cuda", True),
        ("float32", (7, 5), "cpu", True),
    ],
)
def test_keys_are_repeated_where_no_fused_kernel_shares_their_heads(
    theirs: Any, dtype: str, capability: tuple[int, int], device: str, shared: bool
) -> None:
    import torch

    from zerotoolsd.trainer.model.fused_attention import repeat_for

    key = SimpleNamespace(
        device=torch.device(device), dtype=getattr(torch, dtype), shape=(1, 8, 2048, 128)
    )
    assert theirs.use_gqa_in_sdpa(None, key, key), "what transformers does on every card"
    repeat_for((6, 1))
    repeat_for(capability)  # the last one holds
    assert theirs.use_gqa_in_sdpa(None, key, key) is shared


def test_repeated_heads_attend_as_shared_ones(theirs: Any) -> None:
    import torch

    torch.manual_seed(0)
    module = SimpleNamespace(num_key_value_groups=4, is_causal=True)
    query, key, value = (torch.randn(1, heads, 6, 8) for heads in (8, 2, 2))
    shared, _ = theirs.sdpa_attention_forward(module, query, key, value, None)
    theirs.use_gqa_in_sdpa = lambda *_: False
    repeated, _ = theirs.sdpa_attention_forward(module, query, key, value, None)
    torch.testing.assert_close(repeated, shared)


def test_the_log_says_which_kernel(theirs: Any) -> None:
    import torch

    from zerotoolsd.trainer.model.fused_attention import choose_kernel

    config = SimpleNamespace(
        _attn_implementation="sdpa", num_attention_heads=32, num_key_value_heads=8
    )
    model = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: config))
    gpu = torch.device("cuda", 0)
    spec: Any = SimpleNamespace(train=SimpleNamespace(precision="fp16"))
    assert choose_kernel(spec, model, gpu, lambda device: (7, 5)) == (
        "attention: torch's memory-efficient kernel, each head of keys repeated 4 times "
        "(float16, compute capability 7.5: no flash kernel)"
    )
    flash = choose_kernel(spec, model, gpu, lambda device: (9, 0))
    assert str(flash).startswith("attention: torch's flash kernel")
    assert choose_kernel(spec, model, torch.device("cpu")) is None
    config._attn_implementation = "eager"
    assert choose_kernel(spec, model, gpu) is None
