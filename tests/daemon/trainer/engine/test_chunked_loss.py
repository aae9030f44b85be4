"""The loss in parts is the loss of all logits, and so are its gradients: of the head, which may be
tied, and of what is before it, whatever a model does to its logits."""

from __future__ import annotations

from typing import Any

import pytest

from zerotools.core.errors import Unsupported
from zerotools.core.loss_chunk_sizes import LossSize

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

SIZE = LossSize(rows=24, vocabulary=256, hidden=32, cut="on", at_least=1)
ROUNDING = 1e-12
"""Of fp64, of which the sums are in another order."""
KINDS = [
    "llama",  # a linear layer
    "gpt2",  # tied
    "gpt_neox",  # by another name
    "gemma2",  # tied, and its logits are bounded
    "cohere",  # ... multiplied
    "granite",  # ... divided
    "opt",  # forward calls the decoder in its base model
    "llama4_text",  # base_model is the model itself
    "phi",  # a bias
    "gemma3",  # with an image encoder
    "qwen3_moe",  # experts
]


def drawn(kind: str, dtype: Any, **changes: Any) -> Any:
    """A tiny model whose weights are large enough for its logits to tell."""
    from transformers import AutoModelForCausalLM

    from benchmarks.architectures.configs import tiny_config

    config = tiny_config(kind)
    for name, value in changes.items():
        setattr(config, name, value)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, experts_implementation="eager").to(dtype)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model.eval()


def batch(rows: int = 2, length: int = 12) -> tuple[Any, Any]:
    """(input ids, targets of which some are not to be predicted)."""
    from zerotoolsd.trainer.data.example_pools import IGNORED

    drawn_by = torch.Generator().manual_seed(1)
    ids, targets = torch.randint(3, 250, (2, rows, length), generator=drawn_by)
    targets[0, : length // 2] = IGNORED
    return ids, targets


def loss_and_gradients(model: Any, *, cut: bool, targets: Any = None) -> tuple[Any, dict[str, Any]]:
    from zerotoolsd.trainer.engine.chunked_loss import summed_cross_entropy

    ids, wanted = batch()
    wanted = wanted if targets is None else targets
    model.zero_grad()
    if cut:
        # By its key: FSDP2 gathers the head for a gradient of one of the output's values.
        loss = model(input_ids=ids, use_cache=False, targets=wanted)["loss"]
    else:
        loss = summed_cross_entropy(model(input_ids=ids, use_cache=False).logits, wanted)
    (loss * 0.25).backward()
    held = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return loss.detach(), {name: gradient.clone() for name, gradient in held.items()}


def cut_up(model: Any, **options: Any) -> list[str]:
    """Have `model` compute its loss in parts; what it says of that, in the end."""
    from zerotoolsd.trainer.engine.chunked_loss import ChunkedLoss

    said: list[str] = []
    ChunkedLoss(model, SIZE, **{"log_line": said.append, **options}).install()
    return said


def largest_difference(found: dict[str, Any], wanted: dict[str, Any]) -> float:
    assert found.keys() == wanted.keys()
    scale = max(gradient.abs().max() for gradient in wanted.values())
    return max(float((found[name] - wanted[name]).abs().max() / scale) for name in wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradients_are_those_of_all_logits(kind: str) -> None:
    model = drawn(kind, torch.float64)
    loss, gradients = loss_and_gradients(model, cut=False)
    said = cut_up(model)
    in_parts, found = loss_and_gradients(model, cut=True)
    assert said == []
    assert float(in_parts) == pytest.approx(float(loss), rel=ROUNDING)
    assert largest_difference(found, gradients) < ROUNDING
    with torch.no_grad():
        ids, targets = batch()
        evaluated = model(input_ids=ids, use_cache=False, targets=targets).loss
    assert float(evaluated) == float(in_parts)


def test_the_backward_pass_is_the_derivative_of_the_forward_pass() -> None:
    from torch.autograd.gradcheck import gradcheck

    from zerotoolsd.trainer.engine.chunked_loss import LossParts, SummedLoss

    drawn_by = torch.Generator().manual_seed(2)
    head = torch.nn.Linear(4, 7, dtype=torch.float64)
    hidden = torch.randn(2, 3, 4, dtype=torch.float64, generator=drawn_by, requires_grad=True)
    targets = torch.tensor([1, -100, 6, 0, 2, -100])
    rows = torch.tensor([0, 2, 3, 4]).split(3)

    def loss(states: Any, weight: Any, bias: Any) -> Any:
        held = {"weight": weight, "bias": bias}

        def tail(some: Any) -> Any:
            return torch.tanh(torch.func.functional_call(head, held, (some,)))

        return SummedLoss.apply(
            LossParts(tail, targets, rows, [weight, bias]), states, weight, bias
        )

    assert gradcheck(loss, (hidden, head.weight, head.bias))


def test_a_rank_without_anything_to_predict_has_gradients_of_zero() -> None:
    """Else the ranks' gradients would not be of the same tensors."""
    model = drawn("gemma2", torch.float32)
    _, targets = batch()
    cut_up(model)
    loss, gradients = loss_and_gradients(model, cut=True, targets=torch.full_like(targets, -100))
    assert float(loss) == 0
    assert gradients.keys() == {name for name, p in model.named_parameters() if p.requires_grad}
    assert all(not gradient.any() for gradient in gradients.values())


def test_gradients_of_a_16_bit_head_are_summed_in_fp32() -> None:
    """In parts they are as near to the exact ones as in one product; summed in bf16, not by far."""
    model = drawn("llama", torch.bfloat16)
    exact = loss_and_gradients(drawn("llama", torch.float64), cut=False)[1]["lm_head.weight"]
    whole = loss_and_gradients(model, cut=False)[1]["lm_head.weight"]
    cut_up(model)
    found = loss_and_gradients(model, cut=True)[1]["lm_head.weight"]
    assert found.dtype == torch.bfloat16
    assert (found - exact).norm() < 1.1 * (whole - exact).norm()


def test_frozen_weights_get_no_gradient() -> None:
    model = drawn("llama", torch.float64)
    model.requires_grad_(False)
    for parameter in model.model.layers[0].parameters():
        parameter.requires_grad_(True)
    _, wanted = loss_and_gradients(model, cut=False)
    cut_up(model)
    _, found = loss_and_gradients(model, cut=True)
    assert largest_difference(found, wanted) < ROUNDING


def test_the_loss_of_the_experts_router_is_in_the_output() -> None:
    model = drawn("qwen3_moe", torch.float32, output_router_logits=True)
    ids, targets = batch()
    wanted = model(input_ids=ids, use_cache=False).aux_loss
    cut_up(model)
    found = model(input_ids=ids, use_cache=False, targets=targets).aux_loss
    assert found.requires_grad
    assert float(found.detach()) == float(wanted.detach())


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        ("mixes", r"the logits of LlamaForCausalLM, computed position by position, differ"),
        ("drops", r"LlamaForCausalLM applies dropout after its hidden states, in lm_head\.0"),
    ],
)
def test_a_model_that_cannot_be_cut_says_so_and_is_not(damage: str, why: str) -> None:
    class Mixing(torch.nn.Module):
        def forward(self, logits: Any) -> Any:
            return logits + logits.mean(1, keepdim=True)

    model = drawn("llama", torch.float64)
    added = Mixing() if damage == "mixes" else torch.nn.Dropout(0.5)
    order = [model.lm_head, added] if damage == "mixes" else [added, model.lm_head]
    model.lm_head = torch.nn.Sequential(*order).eval()
    loss, gradients = loss_and_gradients(model, cut=False)
    said = cut_up(model)
    in_parts, found = loss_and_gradients(model, cut=True)
    assert float(in_parts) == float(loss)
    assert largest_difference(found, gradients) == 0
    [sentence] = said
    assert sentence.startswith("note: the loss is computed with all logits at once: ")
    model = drawn("llama", torch.float64)
    model.lm_head = torch.nn.Sequential(*order).eval()
    cut_up(model, log_line=None)
    with pytest.raises(Unsupported, match=rf'train\.chunked_loss = "on": {why}'):
        loss_and_gradients(model, cut=True)


def test_a_small_model_tells_before_a_gpu_is_taken() -> None:
    from zerotoolsd.trainer.engine.chunked_loss import try_on_model

    assert try_on_model(drawn("llama", torch.float32), SIZE) == []
    for cut in ("on", "auto"):
        model = drawn("llama", torch.float32)
        model.lm_head = torch.nn.Sequential(model.lm_head, torch.nn.Dropout(0.5))
        size = LossSize(rows=1 << 20, vocabulary=256, hidden=32, cut=cut)
        if cut == "on":
            with pytest.raises(Unsupported, match=r"applies dropout after .* in lm_head\.1"):
                try_on_model(model, size)
        else:
            [note] = try_on_model(model, size)
            assert "applies dropout" in note


def test_no_tensor_has_as_many_numbers_as_there_are_logits() -> None:
    """Asked of every operation of a step. Sequences are short: torch 2.8 has a tensor with a number
    for each pair of positions and head."""
    from torch.utils._python_dispatch import TorchDispatchMode

    sizes = []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                sizes.append(out.numel())
            return out

    model = drawn("llama", torch.float32)
    cut_up(model)
    ids, targets = batch(16, 16)
    model(input_ids=ids[:1, :4], use_cache=False, targets=targets[:1, :4])
    with Sizes():
        model(input_ids=ids, use_cache=False, targets=targets).loss.backward()
    assert max(sizes) < targets.numel() * 256 / 2


def test_generating_is_as_it_was() -> None:
    model = drawn("llama", torch.float32)
    ids, _ = batch()
    before = model.generate(ids, max_new_tokens=4, do_sample=False)
    cut_up(model)
    assert torch.equal(model.generate(ids, max_new_tokens=4, do_sample=False), before)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("cut", ["off", "on"])
def test_what_is_predicted_of_its_memory_is_held(precision: str, cut: str) -> None:
    """Within 1 %, of every tensor that an operation makes."""
    from benchmarks.loss.sizes import held
    from zerotools.ops.estimate.state_memory import loss_bytes

    size = LossSize(rows=256, vocabulary=2048, hidden=256, cut=cut)
    assert held(size, precision) == pytest.approx(loss_bytes(size, precision), rel=1e-2)
