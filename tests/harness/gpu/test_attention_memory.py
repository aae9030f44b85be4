"""The ways to attend that are measured, with the kernel of each kind of GPU."""

from __future__ import annotations

import pytest

from harness.gpu.attention_memory import FLEX, LENGTHS, WAYS, Case, cases, predicted

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    ("capability", "precision", "kernels", "attention"),
    [
        ((9, 0), "bf16", {"flash", "cudnn"}, "sdpa"),
        ((9, 0), "fp32", {"efficient"}, "sdpa with repeated keys"),
        ((7, 5), "fp16", {"efficient"}, "sdpa with repeated keys"),
    ],
)
def test_a_gpu_takes_the_kernel_that_it_has(
    capability: tuple[int, int], precision: str, kernels: set[str], attention: str
) -> None:
    ways = [*WAYS, FLEX]
    found = [each for each in cases("cuda", capability, ways) if each.precision == precision]
    assert len(found) == 4 * len(LENGTHS["cuda"])
    for each in found:
        if each.way in ("eager", "flex_attention"):
            assert not each.kernels
        else:
            assert each.kernels == kernels
            assert each.attention == attention


def test_a_model_of_a_gpu_keeps_more_where_keys_are_repeated_and_most_in_eager() -> None:
    kept = [
        predicted(Case("sdpa", 2048, "fp16", attention, frozenset()), "cuda")
        for attention in ("sdpa", "sdpa with repeated keys", "eager")
    ]
    assert kept == sorted(kept)
    assert kept[1] - kept[0] == 2 * 2048 * 2 * (4096 - 1024) * 2  # layers, tokens, bytes
