"""Models whose sequences are computed in stretches, by threads: losses and gradients are those of
whole sequences.

Tolerance: 1e-6 relative to the largest, which is the order of summation in norms, which are fp32.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from harness.launching import TINY_GPT2, TINY_LLAMA
from tests.matrices import FULL

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
WINDOWED = ("windows, and scores that are bounded",)
LENGTHS = ((5, 9, 2), (12,), (3, 3, 3, 3))
ROUNDING = 1e-6
HEADS = {**TINY_LLAMA, "hidden_size": 48, "num_attention_heads": 12, "head_dim": 4}
PLAIN = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
KINDS: dict[str, tuple[dict[str, Any], int]] = {
    "as many keys as ranks": ({**HEADS, "num_key_value_heads": 2}, 2),
    "fewer keys than ranks": ({**HEADS, "num_key_value_heads": 1}, 3),
    "keys that ranks do not divide": ({**HEADS, "num_key_value_heads": 4}, 6),
    "learned positions": ({**TINY_GPT2, **PLAIN, "n_head": 4}, 4),
    WINDOWED[0]: (
        {**TINY_LLAMA, "model_type": "gemma2", "head_dim": 8, "sliding_window": 4},
        2,
    ),
    "sinks": (
        {
            **TINY_LLAMA,
            "model_type": "gpt_oss",
            "head_dim": 8,
            "sliding_window": 4,
            "num_local_experts": 2,
            "num_experts_per_tok": 1,
        },
        2,
    ),
    "angles by the length": (
        {**HEADS, "num_key_value_heads": 4, "max_position_embeddings": 8}
        | {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 100.0, "factor": 4.0}},
        2,
    ),
    "angles of long sequences": (
        {**HEADS, "num_key_value_heads": 4}
        | {
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": 100.0,
                "factor": 4.0,
                "original_max_position_embeddings": 8,
                "short_factor": [1.0, 1.5],
                "long_factor": [2.0, 3.0],
            }
        },
        2,
    ),
}
MIXED = ("fewer keys than ranks", "sinks", "angles of long sequences")
"""Of which the others have parts."""
UNPACKED = ("angles by the length", "angles of long sequences", "sinks")
"""transformers mixes segments in GPT-OSS; and angles depend on the longest segment."""


def made(tree: dict[str, Any]) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    kept = dict(tree)
    config = AutoConfig.for_model(kept.pop("model_type"), **kept)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, experts_implementation="eager")
    with torch.no_grad():
        for value in model.parameters():
            value.add_(torch.randn_like(value), alpha=0.1)
    return model.double().train()


def examples(*, packed: bool) -> list[Any]:
    from zerotoolsd.trainer.data.example_pools import Example
    from zerotoolsd.trainer.data.packing import join_examples

    drawn = torch.Generator().manual_seed(1)

    def example(length: int) -> Example:
        ids: list[int] = torch.randint(3, 250, (length,), generator=drawn).tolist()
        return Example([*ids[:-1], 7], ids)

    if packed:
        return [join_examples([example(size) for size in row]) for row in LENGTHS]
    return [example(sum(row)) for row in LENGTHS]


def gradients(model: Any) -> dict[str, Any]:
    found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return {name: gradient.clone() for name, gradient in found.items()}


Loss = Callable[[Any], Any]


def whole(model: Any, loss: Loss) -> tuple[float, dict[str, Any]]:
    found = loss(model)
    found.backward()
    return float(found.detach()), gradients(model)


def in_stretches(model: Any, ranks: int, loss: Loss) -> tuple[float, dict[str, Any]]:
    """The sums over the ranks."""
    from zerotoolsd.trainer.check_sequence_parallel import in_threads
    from zerotoolsd.trainer.sequence_parallel.sequence_attention import attend_over_ranks
    from zerotoolsd.trainer.sequence_parallel.split_batch import SequencePart, set_sequence_part

    attend_over_ranks(model, ranks)
    copies = [copy.deepcopy(model) for _ in range(ranks)]

    def one(exchange: Any) -> tuple[float, dict[str, Any]]:
        own = copies[exchange.index]
        set_sequence_part(own, SequencePart(exchange))
        return whole(own, loss)

    parts = in_threads(ranks, one)
    names = {name for _, found in parts for name in found}
    summed = {name: sum(found[name] for _, found in parts if name in found) for name in names}
    return sum(value for value, _ in parts), summed


def summed_loss(batch: Sequence[Any]) -> Loss:
    from zerotoolsd.trainer.engine.training_loss import training_loss

    device = torch.device("cpu")
    return lambda model: training_loss(model, batch, device, weight=1.0, router_weight=1.0)


def same(model: Any, ranks: int, loss: Loss) -> None:
    wanted, gradients_wanted = whole(copy.deepcopy(model), loss)
    found, gradients_found = in_stretches(model, ranks, loss)
    assert found == pytest.approx(wanted, rel=ROUNDING)
    assert gradients_found.keys() == gradients_wanted.keys()
    largest = max(float(gradient.abs().max()) for gradient in gradients_wanted.values())
    for name, gradient in gradients_wanted.items():
        assert float((gradients_found[name] - gradient).abs().max()) <= ROUNDING * largest, name


@pytest.mark.parametrize("kind", KINDS if FULL else MIXED)
def test_losses_and_gradients_are_those_of_whole_sequences(kind: str) -> None:
    tree, ranks = KINDS[kind]
    same(made(tree), ranks, summed_loss(examples(packed=False)))


@pytest.mark.parametrize(
    "kind", [kind for kind in KINDS if kind not in UNPACKED] if FULL else WINDOWED
)
def test_segments_do_not_see_one_another(kind: str) -> None:
    tree, ranks = KINDS[kind]
    same(made(tree), ranks, summed_loss(examples(packed=True)))


def test_segments_are_attended_to_one_by_one() -> None:
    from zerotoolsd.trainer.model.segment_attention import SEGMENTED

    model, loss = made(HEADS), summed_loss(examples(packed=True))
    model.set_attn_implementation(SEGMENTED)
    same(model, 2, loss)


def test_activations_that_are_computed_again() -> None:
    from zerotoolsd.trainer.model.meta_model import checkpoint_activations

    model = made(HEADS)
    checkpoint_activations(model)
    same(model, 3, summed_loss(examples(packed=False)))


def test_preferences() -> None:
    from zerotoolsd.trainer.data.example_store import Preference
    from zerotoolsd.trainer.engine.training_loss import preference_loss

    chosen = examples(packed=False)
    pairs = [
        Preference(one.inputs, one.targets, (), other, (-80.0, -60.0))
        for one, other in zip(chosen, reversed(chosen), strict=True)
    ]
    device = torch.device("cpu")
    same(made(HEADS), 2, lambda model: preference_loss(model, pairs, device, 0.1)[0])


def test_without_a_batch_it_is_what_it_was() -> None:
    from zerotoolsd.trainer.sequence_parallel.sequence_attention import attend_over_ranks

    model = made(HEADS).eval()
    ids = torch.arange(3, 15)[None]
    wanted = model(input_ids=ids, use_cache=False).logits
    attend_over_ranks(model, 2)
    assert torch.equal(model(input_ids=ids, use_cache=False).logits, wanted)


def test_heads_that_ranks_do_not_divide() -> None:
    from zerotools.core.errors import Unsupported

    with pytest.raises(Unsupported, match="sequence_ranks = 5: must divide the 12 attention heads"):
        in_stretches(made(HEADS), 5, summed_loss(examples(packed=False)))
