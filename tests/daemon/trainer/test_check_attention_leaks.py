"""Models whose tokens see what they must not are refused, whatever they are called."""

from __future__ import annotations

from typing import Any

import pytest

from harness.launching import TINY_LLAMA
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.io.files.optional_packages import is_older

pytestmark = pytest.mark.torch
BERT = {
    "model_type": "bert",
    "vocab_size": 256,
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
}


def config_of(tree: dict[str, Any] | str) -> Any:
    from transformers import CONFIG_MAPPING

    from benchmarks.architectures.configs import tiny_config

    if isinstance(tree, str):
        return tiny_config(tree)
    return CONFIG_MAPPING[tree["model_type"]].from_dict(tree)


@pytest.mark.parametrize("kind", ["bert", "electra", "roberta", "xlnet"])
def test_a_bidirectional_model_is_refused_and_its_decoder_is_not(kind: str) -> None:
    from zerotoolsd.trainer.check_attention_leaks import check_leaks

    tree = {**BERT, "model_type": kind}
    if kind == "xlnet":
        tree |= {"n_head": 2, "d_model": 32, "n_layer": 1, "d_inner": 64, "d_head": 16}
    with pytest.raises(BadRequest, match=f"a {kind} model with this config is bidirectional"):
        check_leaks(config_of(tree), packing=False)
    if kind != "xlnet":
        check_leaks(config_of({**tree, "is_decoder": True}), packing=False)


@pytest.mark.parametrize("name", ["jamba", "qwen3_next", "mamba", "gpt_oss", "falcon", "opt"])
def test_a_model_that_mixes_packed_examples_is_refused_with_packing_alone(name: str) -> None:
    import transformers

    from zerotoolsd.trainer.check_attention_leaks import check_leaks

    config = config_of(name)
    check_leaks(config, packing=False)
    if name == "falcon" and not is_older(transformers.__version__, "transformers>=5.24"):
        check_leaks(config, packing=True)  # there it keeps them apart
        return
    with pytest.raises(Unsupported, match=rf"^data\.packing: in a {name} model .* influences"):
        check_leaks(config, packing=True)


@pytest.mark.parametrize("name", ["llama", "mixtral", "deepseek_v3", "gpt2", "gemma3"])
def test_a_model_that_keeps_examples_apart_is_taken(name: str) -> None:
    import torch
    import transformers

    from zerotoolsd.trainer.check_attention_leaks import check_leaks

    if name == "gemma3" and is_older(transformers.__version__, "transformers>=5.10"):
        pytest.skip("transformers before 5.10 does not train it on text alone: the next test")
    before = torch.get_rng_state()
    check_leaks(config_of(name), packing=True)
    assert torch.equal(before, torch.get_rng_state())


def test_a_model_that_must_be_told_of_images_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Gemma 3 is in transformers 5.1 to 5.5, at its first step."""
    import torch

    from zerotoolsd.trainer import check_attention_leaks

    class Asks(torch.nn.Module):
        config = config_of(TINY_LLAMA)

        def get_input_embeddings(self) -> Any:
            return self

        def forward(self, **arguments: Any) -> Any:
            raise ValueError("`token_type_ids` is required as a model input when training")

    monkeypatch.setattr(check_attention_leaks, "small_model", lambda config: Asks())
    with pytest.raises(Unsupported, match=r"llama model on text alone \(`token.*upgrade transf"):
        check_attention_leaks.check_leaks(config_of(TINY_LLAMA), packing=False)


def test_of_widths_that_do_not_fit_each_other_the_model_itself_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from zerotoolsd.trainer import check_attention_leaks
    from zerotoolsd.trainer.model import tiny_model

    def fails(config: Any) -> Any:
        raise ValueError("no such width")

    monkeypatch.setattr(tiny_model, "narrow_config", fails)
    with pytest.raises(BadRequest, match="bidirectional"):
        check_attention_leaks.check_leaks(config_of(BERT), packing=False)
    check_attention_leaks.check_leaks(config_of(TINY_LLAMA), packing=True)
    # Of one that is too large to try, packing is refused; nothing else is known of it.
    monkeypatch.setattr(tiny_model, "LARGEST", 1000)
    check_attention_leaks.check_leaks(config_of(TINY_LLAMA), packing=False)
    with pytest.raises(Unsupported, match=r"data\.packing: zerotools cannot test whether packed"):
        check_attention_leaks.check_leaks(config_of(TINY_LLAMA), packing=True)


def test_a_choice_of_tokens_that_has_no_gradient_is_a_leak(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    from zerotoolsd.trainer import check_attention_leaks

    class Chooses(torch.nn.Module):
        """The largest id of all tokens moves what is said of each."""

        config = config_of(TINY_LLAMA)

        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(256, 8)

        def get_input_embeddings(self) -> Any:
            return self.embedding

        def forward(self, input_ids: Any, position_ids: Any = None, use_cache: bool = False) -> Any:
            class Said:
                logits = self.embedding(input_ids) + input_ids.sum()

            return Said()

    monkeypatch.setattr(check_attention_leaks, "small_model", lambda config: Chooses())
    with pytest.raises(BadRequest, match="bidirectional"):
        check_attention_leaks.check_leaks(config_of(TINY_LLAMA), packing=False)
