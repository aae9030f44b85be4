"""Whether a model computes the same with a part of its heads is seen before its job is queued."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.daemon.trainer.torch_releases import needs_tensor_ranks
from tests.matrices import FULL
from zerotools.core.errors import Unsupported

pytestmark = pytest.mark.torch
# Heads that are views, norms of heads, gathered columns, fused projections, linear attention.
TRIED = ("llama", "qwen3", "olmo2", "phi3", "qwen3_5_text")
FURTHER = (
    *("arcee", "cohere", "cohere2", "ernie4_5", "exaone4", "gemma", "gemma2", "gemma3_text", "glm"),
    *("glm4", "gpt_neox", "granite", "helium", "mistral", "nemotron", "olmo", "olmo3", "phi"),
    *("qwen2", "seed_oss", "smollm3", "starcoder2"),
)


def drawn(name: str) -> Any:
    from benchmarks.architectures.configs import tiny_config
    from zerotoolsd.trainer.model.meta_model import make_meta_model

    return make_meta_model(tiny_config(name))


@needs_tensor_ranks
@pytest.mark.parametrize("name", [*TRIED, *(FURTHER if FULL else ())])
def test_what_transformers_plans_for_gives_the_logits_of_one_rank(name: str) -> None:
    from zerotoolsd.trainer.check_tensor_parallel import check_tensor_ranks

    notes = check_tensor_ranks(drawn(name), 2)
    assert all(note.startswith("note: lm_head is not split") for note in notes)


@pytest.mark.parametrize(
    ("layer", "style"),
    [
        # Columns that belong to a part of the heads, taken for whole ones; and the other way.
        ("self_attn.v_proj", "colwise_rep"),
        ("mlp.down_proj", "rowwise_rep"),
    ],
)
def test_a_plan_that_does_not_fit_the_model_is_told(layer: str, style: str) -> None:
    import torch

    from benchmarks.architectures.configs import tiny_config
    from zerotoolsd.trainer.check_tensor_parallel import rank_difference
    from zerotoolsd.trainer.model.tiny_model import small_model

    right, wrong = (small_model(tiny_config("llama")) for _ in range(2))
    assert right is not None
    assert wrong is not None
    wrong._tp_plan = {**wrong._tp_plan, f"model.layers.*.{layer}": style}
    with torch.no_grad():
        assert rank_difference(right.eval()) is None
        assert rank_difference(wrong.eval())


def test_a_torch_without_a_placement_for_each_weight_is_refused() -> None:
    """As torch before 2.12 is."""
    from zerotoolsd.trainer.model.sharding import placement_types

    for package in (SimpleNamespace(), SimpleNamespace(_fsdp_common=SimpleNamespace())):
        with pytest.raises(Unsupported, match=r"^zero\.tensor_ranks: torch .* torch to 2\.13"):
            placement_types(package)


def test_one_rank_is_not_tried() -> None:
    from zerotoolsd.trainer.check_tensor_parallel import check_tensor_ranks

    assert check_tensor_ranks(drawn("gpt2"), 1) == []
