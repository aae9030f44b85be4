"""Which layers are packed: frozen linear ones, as transformers' loader has it."""

from __future__ import annotations

from typing import Any

import pytest

from harness.launching import TINY_GPT2, TINY_LLAMA
from zerotools.core.errors import BadRequest
from zerotools.jobs.tables.lora import LoraSpec

pytestmark = pytest.mark.peft
FIND = "zerotoolsd.trainer.nf4.frozen_layers.find_spec"
SPEC = LoraSpec(rank=2, frozen_precision="nf4", target_modules=("q_proj", "lm_head"))


@pytest.fixture
def with_bitsandbytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """To draw a model nothing of the package is called."""
    monkeypatch.setattr(FIND, lambda _: True)


def draw_model(config: Any, spec: LoraSpec = SPEC) -> Any:
    from zerotoolsd.trainer.model.meta_model import draw

    return draw(config, spec)


def test_linear_layers_but_the_head_are_packed(with_bitsandbytes: None) -> None:
    from transformers import LlamaConfig

    from zerotoolsd.trainer.nf4.nf4_linear import packed_linears

    drawn = draw_model(LlamaConfig(**TINY_LLAMA))
    names = {name for name, _ in packed_linears(drawn.model)}
    layers = range(TINY_LLAMA["num_hidden_layers"])
    attention = ["self_attn.q_proj.base_layer", *(f"self_attn.{n}_proj" for n in "kvo")]
    inner = [*attention, *(f"mlp.{name}_proj" for name in ("gate", "up", "down"))]
    assert names == {f"model.layers.{layer}.{name}" for layer in layers for name in inner}
    trained, frozen = drawn.parameter_count()
    whole = draw_model(LlamaConfig(**TINY_LLAMA), LoraSpec(rank=2, target_modules=("q_proj",)))
    assert frozen == whole.parameter_count()[1]
    assert trained == sum(p.numel() for p in drawn.model.parameters() if p.requires_grad)
    assert "lm_head.base_layer.weight" in dict(drawn.model.named_parameters())


def test_what_transformers_keeps_in_fp32_is_not_packed(with_bitsandbytes: None) -> None:
    from transformers import T5Config

    from zerotoolsd.trainer.nf4.nf4_linear import packed_linears

    config = T5Config(
        d_model=16, d_kv=4, d_ff=32, num_layers=1, num_heads=4, vocab_size=32,
        decoder_start_token_id=0,
    )  # fmt: skip
    drawn = draw_model(config, LoraSpec(rank=2, frozen_precision="nf4", target_modules=("q",)))
    names = {name.rpartition(".")[2] for name, _ in packed_linears(drawn.model)}
    assert "wi" in names
    assert "wo" not in names


def test_a_model_without_linear_layers_is_refused(with_bitsandbytes: None) -> None:
    from transformers import GPT2Config

    spec = LoraSpec(rank=2, frozen_precision="nf4", target_modules=("c_attn",))
    with pytest.raises(BadRequest, match='GPT2LMHeadModel has none that are frozen; set "train"'):
        draw_model(GPT2Config(**TINY_GPT2), spec)


def test_without_bitsandbytes_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import LlamaConfig

    monkeypatch.setattr(FIND, lambda _: None)
    with pytest.raises(BadRequest, match=r"needs bitsandbytes, which .* not have; run .* inst"):
        draw_model(LlamaConfig(**TINY_LLAMA))
