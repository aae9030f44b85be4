"""Packed sequences: what they hold, and that their parts do not see one another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.launching import TINY_GPT2, TINY_LLAMA
from zerotoolsd.trainer.data.example_pools import IGNORED, Example

pytestmark = pytest.mark.torch


class Runs:
    """Examples whose tokens are their own number, `sizes` of them each."""

    def __init__(self, sizes: list[int]) -> None:
        self.sizes = sizes

    def __len__(self) -> int:
        return len(self.sizes)

    def example(self, number: int) -> Example:
        ids = [number] * self.sizes[number]
        return Example(ids, [IGNORED, *ids[1:]])

    def predicted(self, number: int) -> int:
        return self.sizes[number] - 1

    def size(self, number: int) -> int:
        return self.sizes[number]


@given(
    sizes=st.lists(st.integers(1, 20), min_size=1, max_size=60),
    length=st.integers(5, 40),
    seed=st.integers(0, 9),
)
def test_every_example_is_in_one_sequence_and_none_is_too_long(
    sizes: list[int], length: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from zerotoolsd.trainer.data.packing import PackedSequences, plan_packs

    pool, path = Runs(sizes), tmp_path_factory.mktemp("packs") / "packs"
    plan_packs(pool, length, seed, path)
    packs = PackedSequences(pool, path, seed)
    found = [packs.example(number) for number in range(len(packs))]
    assert sorted(token for example in found for token in example.inputs) == sorted(
        number for number, size in enumerate(sizes) for _ in range(size)
    )
    for number, example in enumerate(found):
        assert len(example.inputs) <= length or len(example.segments) == 1
        assert sum(example.segments) == len(example.inputs) == packs.size(number)
        asked = sum(target != IGNORED for target in example.targets)
        assert asked == packs.predicted(number)


PARTS = [
    Example([5, 6, 7, 8, 9], [IGNORED, IGNORED, 8, 9, 10]),
    Example([20], [21]),
    Example([5, 9, 7], [IGNORED, 40, 41]),
]


@pytest.mark.parametrize("tree", [TINY_LLAMA, TINY_GPT2], ids=["llama", "gpt2"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_packed_examples_cost_what_they_cost_alone(tree: dict[str, Any], attention: str) -> None:
    import torch

    from zerotoolsd.trainer.data.packing import join_examples
    from zerotoolsd.trainer.engine.training_loss import summed_loss

    model = small(tree, attention)
    cpu = torch.device("cpu")
    alone = [summed_loss(model, [part], cpu) for part in PARTS]
    filled = summed_loss(model, PARTS, cpu)
    packed = summed_loss(model, [join_examples(PARTS), join_examples(PARTS[:2])], cpu)
    assert filled.loss == pytest.approx(sum(one.loss for one in alone), rel=1e-6)
    twice = sum(one.loss for one in alone + alone[:2])
    assert (packed.loss, packed.tokens) == (pytest.approx(twice, rel=1e-6), 6 + 4)


def test_the_loss_is_that_of_transformers_on_the_response_alone(tmp_path: Path) -> None:
    import torch

    from zerotoolsd.trainer.data.encoding.encoded_example import Encoded, as_ids, mark_learned
    from zerotoolsd.trainer.data.example_store import Examples, write_examples
    from zerotoolsd.trainer.engine.training_loss import summed_loss

    model = small(TINY_LLAMA, "sdpa")
    path = tmp_path / "ids"
    write_examples(
        [Encoded("a:1", np.append(as_ids([1, 2, 3]), mark_learned(as_ids([4, 5]))), 3)],
        path,
        encoder_decoder=False,
    )
    found = summed_loss(
        model, [Examples(path, encoder_decoder=False).example(0)], torch.device("cpu")
    )
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    labels = torch.tensor([[IGNORED, IGNORED, IGNORED, 4, 5]])
    wanted = model(input_ids=ids, labels=labels).loss.detach()
    assert found.loss / found.tokens == pytest.approx(float(wanted), rel=1e-6)


def small(tree: dict[str, Any], attention: str) -> Any:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    config = AutoConfig.for_model(**tree, attn_implementation=attention)
    return AutoModelForCausalLM.from_config(config).eval()
