"""Packed layers are bitsandbytes' own, bit by bit, and their backward pass keeps no weight."""

from __future__ import annotations

from typing import Any

import pytest

from harness.launching import TINY_GPT2, TINY_LLAMA
from zerotools.core.errors import BadRequest
from zerotools.core.training_memory_layout import nf4_bytes
from zerotools.jobs.jobfile_tables.lora import LoraSpec

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (8, 64), (130, 127)])
@pytest.mark.parametrize("double_quant", [True, False])
def test_a_layer_has_as_many_bytes_as_are_predicted(
    shape: tuple[int, int], double_quant: bool
) -> None:
    import torch

    from zerotoolsd.trainer.model.nf4_linear import PackedLinear, packed_buffers

    linear = torch.nn.Linear(shape[1], shape[0], bias=False, device="meta")
    layer = PackedLinear(linear, double_quant=double_quant)
    held = sum(buffer.nbytes for buffer in layer.buffers())
    assert held == nf4_bytes(shape[0] * shape[1], double_quant=double_quant)
    assert not layer.state_dict()
    names = {"inner.packed", "inner.scales"}
    names |= {"inner.scale_scales", "inner.scale_mean"} if double_quant else set()
    assert packed_buffers(torch.nn.ModuleDict({"inner": layer})) == names


@pytest.mark.full
@pytest.mark.parametrize("double_quant", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (16, 64), (130, 127), (300, 256)])
def test_values_and_gradients_are_those_of_bitsandbytes(
    shape: tuple[int, int], dtype: str, double_quant: bool
) -> None:
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    import torch
    from bitsandbytes.nn import Linear4bit

    from zerotoolsd.trainer.model.nf4_linear import PackedLinear

    torch.manual_seed(shape[0])
    wanted_type = getattr(torch, dtype)
    linear = torch.nn.Linear(shape[1], shape[0], dtype=wanted_type).requires_grad_(False)
    theirs = Linear4bit(
        *(shape[1], shape[0], True, wanted_type),
        compress_statistics=double_quant,
        quant_type="nf4",
    )
    theirs.load_state_dict(linear.state_dict())
    theirs = theirs.to("cpu").requires_grad_(False)
    ours = PackedLinear(linear, double_quant=double_quant)
    ours.pack_weight(linear.weight)
    inputs = [torch.randn(2, 7, shape[1], dtype=wanted_type) for _ in range(2)]
    inputs[1].copy_(inputs[0])
    outputs = []
    for layer, given in zip((ours, theirs), inputs, strict=True):
        outputs.append(layer(given.requires_grad_()))
        outputs[-1].backward(torch.ones_like(outputs[-1]))
    assert torch.equal(ours.packed, theirs.weight.data)
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(inputs[0].grad, inputs[1].grad)


@pytest.mark.full
def test_no_weight_is_kept_for_the_backward_pass() -> None:
    pytest.importorskip("bitsandbytes", reason="bitsandbytes is not installed")
    import torch

    from zerotoolsd.trainer.model.nf4_linear import PackedLinear

    linear = torch.nn.Linear(256, 128)
    layer = PackedLinear(linear, double_quant=True)
    layer.pack_weight(linear.weight.detach())
    kept: list[torch.Size] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.shape) or t, lambda t: t):
        layer(torch.randn(3, 256, requires_grad=True))
    assert torch.Size((128, 256)) not in kept
    assert torch.Size((256, 128)) not in kept


def test_kernels_that_do_not_work_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from zerotools.core.errors import BadRequest
    from zerotoolsd.trainer.model import nf4_linear

    def broken() -> None:
        raise RuntimeError("no binary for CUDA 99\nsee the manual")

    monkeypatch.setattr(nf4_linear, "_functional", broken)
    said = "bitsandbytes does not work on cpu here: no binary for CUDA 99; install another release"
    with pytest.raises(BadRequest, match=said):
        nf4_linear.check_kernels(torch.device("cpu"))


FIND = "zerotoolsd.trainer.model.nf4_linear.find_spec"
SPEC = LoraSpec(rank=2, frozen_precision="nf4", target_modules=("q_proj", "lm_head"))


@pytest.fixture
def with_bitsandbytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """To draw a model nothing of the package is called."""
    monkeypatch.setattr(FIND, lambda _: True)


def draw_model(config: Any, spec: LoraSpec = SPEC) -> Any:
    from zerotoolsd.trainer.model.meta_model import make_meta_model

    return make_meta_model(config, spec)


@pytest.mark.peft
def test_linear_layers_but_the_head_are_packed(with_bitsandbytes: None) -> None:
    from transformers import LlamaConfig

    from zerotoolsd.trainer.model.nf4_linear import packed_linears

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


@pytest.mark.peft
def test_what_transformers_keeps_in_fp32_is_not_packed(with_bitsandbytes: None) -> None:
    from transformers import T5Config

    from zerotoolsd.trainer.model.nf4_linear import packed_linears

    config = T5Config(
        d_model=16, d_kv=4, d_ff=32, num_layers=1, num_heads=4, vocab_size=32,
        decoder_start_token_id=0,
    )  # fmt: skip
    drawn = draw_model(config, LoraSpec(rank=2, frozen_precision="nf4", target_modules=("q",)))
    names = {name.rpartition(".")[2] for name, _ in packed_linears(drawn.model)}
    assert "wi" in names
    assert "wo" not in names


@pytest.mark.peft
def test_a_model_without_linear_layers_is_refused(with_bitsandbytes: None) -> None:
    from transformers import GPT2Config

    spec = LoraSpec(rank=2, frozen_precision="nf4", target_modules=("c_attn",))
    with pytest.raises(BadRequest, match='GPT2LMHeadModel has none; set it to "train"'):
        draw_model(GPT2Config(**TINY_GPT2), spec)


@pytest.mark.peft
def test_without_bitsandbytes_one_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import LlamaConfig

    monkeypatch.setattr(FIND, lambda _: None)
    with pytest.raises(BadRequest, match=r"needs bitsandbytes, which .* not have; run .* inst"):
        draw_model(LlamaConfig(**TINY_LLAMA))
