"""DPO's loss, by the formula."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from zerotoolsd.trainer.data.example_pools import Example

if TYPE_CHECKING:
    import torch

pytestmark = pytest.mark.torch
BETA = 0.1


class Uniform:
    """A model that gives each token id the probability that its table says."""

    config = SimpleNamespace(
        is_encoder_decoder=False,
        get_text_config=lambda: SimpleNamespace(_attn_implementation="sdpa"),
    )

    def __init__(self, probabilities: list[float]) -> None:
        import torch

        self.logits = torch.tensor(probabilities).log()

    def __call__(self, input_ids: torch.Tensor, **_: Any) -> Any:
        return SimpleNamespace(logits=self.logits.expand(*input_ids.shape, -1))


def test_it_is_that_of_the_formula() -> None:
    import torch

    from zerotoolsd.trainer.data.example_store import Preference
    from zerotoolsd.trainer.engine.training_loss import summed_preference_loss

    model = Uniform([0.5, 0.25, 0.125, 0.125])
    # Chosen: tokens 0 and 1, log(1/8). Rejected: token 2, log(1/8), and one more.
    chosen, rejected = Example([3, 0, 1], [0, 1, -100]), Example([3, 2], [2, 3])
    pair = Preference(chosen.inputs, chosen.targets, (), rejected, (-4.0, -3.0))
    wrong = Preference(chosen.inputs, chosen.targets, (), rejected, (-2.0, -9.0))
    device = torch.device("cpu")
    found = summed_preference_loss(model, [pair, wrong, pair.without_targets()], device, BETA)
    rewards = [
        (BETA * (math.log(1 / 8) - one), BETA * (math.log(1 / 64) - other))
        for one, other in ((-4.0, -3.0), (-2.0, -9.0))
    ]
    losses = [math.log1p(math.exp(other - one)) for one, other in rewards]
    assert (found.loss, found.tokens) == (pytest.approx(sum(losses), rel=1e-6), 2)
    assert found.rewards is not None
    assert found.rewards.chosen == pytest.approx(rewards[0][0] + rewards[1][0], rel=1e-5)
    assert found.rewards.rejected == pytest.approx(rewards[0][1] + rewards[1][1], rel=1e-5)
    assert found.rewards.right == 1
    assert found.rewards.fields()["reward_margin"] == pytest.approx(
        found.rewards.chosen - found.rewards.rejected
    )


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("gpt2", {"n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 8}),
        ("bloom", {"hidden_size": 8, "n_layer": 1, "n_head": 2, "hidden_dropout": 0.5}),
        ("opt", {"hidden_size": 8, "ffn_dim": 8, "num_hidden_layers": 1, "dropout": 0.5}),
    ],
)
def test_dropout_is_off_however_a_model_applies_it(kind: str, settings: dict[str, Any]) -> None:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from zerotoolsd.trainer.engine.training_loss import switch_off_dropout

    small = {"vocab_size": 16, "num_attention_heads": 2, "word_embed_proj_dim": 8}
    config = AutoConfig.for_model(kind, **small, **settings)
    model, ids = AutoModelForCausalLM.from_config(config).train(), torch.arange(8)[None]
    assert not torch.equal(model(input_ids=ids).logits, model(input_ids=ids).logits)
    switch_off_dropout(model)
    assert torch.equal(model(input_ids=ids).logits, model(input_ids=ids).logits)
