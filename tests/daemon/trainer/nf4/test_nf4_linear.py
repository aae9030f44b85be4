"""Packed layers are bitsandbytes' own, bit by bit, and their backward pass keeps no weight."""

from __future__ import annotations

import pytest

from zerotools.core.training_memory import nf4_bytes

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (8, 64), (130, 127)])
@pytest.mark.parametrize("double_quant", [True, False])
def test_a_layer_has_as_many_bytes_as_are_predicted(
    shape: tuple[int, int], double_quant: bool
) -> None:
    import torch

    from zerotoolsd.trainer.nf4.nf4_linear import PackedLinear, packed_buffers

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

    from zerotoolsd.trainer.nf4.nf4_linear import PackedLinear

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
    ours.take(linear.weight)
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

    from zerotoolsd.trainer.nf4.nf4_linear import PackedLinear

    linear = torch.nn.Linear(256, 128)
    layer = PackedLinear(linear, double_quant=True)
    layer.take(linear.weight.detach())
    kept: list[torch.Size] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.shape) or t, lambda t: t):
        layer(torch.randn(3, 256, requires_grad=True))
    assert torch.Size((128, 256)) not in kept
    assert torch.Size((256, 128)) not in kept


def test_kernels_that_do_not_work_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    from zerotools.core.errors import BadRequest
    from zerotoolsd.trainer.nf4 import nf4_linear

    def broken() -> None:
        raise RuntimeError("no binary for CUDA 99\nsee the manual")

    monkeypatch.setattr(nf4_linear, "_functional", broken)
    said = "bitsandbytes does not work on cpu here: no binary for CUDA 99; install another release"
    with pytest.raises(BadRequest, match=said):
        nf4_linear.check_kernels(torch.device("cpu"))
