"""Packed sequences without a mask: losses and gradients are those with one."""

from __future__ import annotations

from typing import Any

import pytest

from harness.launching import TINY_LLAMA

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch
LENGTHS = ((5, 9, 2), (12,), (3, 3, 3, 3))
ROUNDING = 1e-12
WINDOWED = {"sliding_window": 4, "model_type": "gemma3_text", "head_dim": 8, "layer_types": None}
CHUNKED = {"attention_chunk_size": 4, "model_type": "llama4_text", "head_dim": 8}
KINDS = {
    "llama": {},
    "window": {**WINDOWED, "layer_types": ["sliding_attention", "full_attention"]},
    "chunks": {**CHUNKED, "layer_types": ["chunked_attention", "full_attention"]},
    "experts": {
        "model_type": "qwen3_moe",
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
    },
}


def made(changes: dict[str, Any]) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM

    tree = {**TINY_LLAMA, **changes}
    config = AutoConfig.for_model(tree.pop("model_type"), **tree)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, experts_implementation="eager")
    return model.double().eval()


def examples(times: int = 1) -> list[Any]:
    from zerotoolsd.trainer.data.example_pools import Example
    from zerotoolsd.trainer.data.packing import join_examples

    drawn = torch.Generator().manual_seed(1)

    def ids(length: int) -> list[int]:
        found: list[int] = torch.randint(3, 250, (length,), generator=drawn).tolist()
        return found

    rows = [lengths * times for lengths in LENGTHS]
    return [join_examples([Example(ids(size), ids(size)) for size in lengths]) for lengths in rows]


def trained(model: Any, batch: list[Any]) -> tuple[float, dict[str, Any]]:
    from zerotoolsd.trainer.engine.training_loss import training_loss

    model.zero_grad()
    device = torch.device("cpu")
    loss = training_loss(model, batch, device, weight=1.0, router_weight=1.0)
    loss.backward()
    held = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    return float(loss.detach()), {name: gradient.clone() for name, gradient in held.items()}


def has_mask_of_segments(model: Any) -> bool:
    """Whether a segment behind another one has the logits that it has alone. Chunks of transformers
    5.1 begin with the row: there a job takes the mask."""
    ids = torch.randint(3, 250, (1, 12), generator=torch.Generator().manual_seed(2))
    places = torch.tensor([[*range(5), *range(7)]])
    both = model(input_ids=ids, position_ids=places, use_cache=False).logits[:, 5:]
    alone = model(input_ids=ids[:, 5:], position_ids=places[:, 5:], use_cache=False).logits
    return torch.allclose(both, alone, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
def test_losses_and_gradients_are_those_of_a_mask(kind: str) -> None:
    from zerotoolsd.trainer.model.segment_attention import SEGMENTED

    model = made(KINDS[kind])
    if not has_mask_of_segments(model):
        pytest.skip("the mask of this transformers is not that of the segments")
    loss, wanted = trained(model, examples())
    model.set_attn_implementation(SEGMENTED)
    found, gradients = trained(model, examples())
    assert found == pytest.approx(loss, rel=ROUNDING)
    assert gradients.keys() == wanted.keys()
    largest = max(float(gradient.abs().max()) for gradient in wanted.values())
    for name, gradient in wanted.items():
        assert float((gradients[name] - gradient).abs().max()) <= ROUNDING * largest


@pytest.mark.parametrize("kind", ["llama", "window"])
def test_the_loss_may_be_computed_in_parts(kind: str) -> None:
    """Which is tried on the first tokens, of which a segment may go on behind them."""
    from zerotools.core.loss_chunk_sizes import LossSize
    from zerotoolsd.trainer.engine.chunked_loss import ChunkedLoss
    from zerotoolsd.trainer.model.segment_attention import SEGMENTED

    model = made(KINDS[kind])
    loss, wanted = trained(model, examples(3))
    model.set_attn_implementation(SEGMENTED)
    ChunkedLoss(model, LossSize(144, 256, 32, "on", at_least=8)).install()
    found, gradients = trained(model, examples(3))
    assert found == pytest.approx(loss, rel=ROUNDING)
    for name, gradient in wanted.items():
        assert torch.allclose(gradients[name], gradient, rtol=1e-9, atol=1e-12)


def test_recomputed_blocks_see_the_same_segments() -> None:
    from zerotoolsd.trainer.model.meta_model import checkpoint_activations
    from zerotoolsd.trainer.model.segment_attention import SEGMENTED

    model = made({}).train()
    loss, wanted = trained(model, examples())
    model.set_attn_implementation(SEGMENTED)
    checkpoint_activations(model)
    found, gradients = trained(model, examples())
    assert found == pytest.approx(loss, rel=ROUNDING)
    for name, gradient in wanted.items():
        assert torch.allclose(gradients[name], gradient, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("segmented", [False, True])
def test_no_tensor_is_all_positions_by_all_positions(*, segmented: bool) -> None:
    """With a mask there is one: what this test looks for is there to be found."""
    from torch.utils._python_dispatch import TorchDispatchMode

    from zerotoolsd.trainer.data.example_pools import Example
    from zerotoolsd.trainer.data.packing import join_examples
    from zerotoolsd.trainer.model.segment_attention import SEGMENTED

    sizes = []

    class Sizes(TorchDispatchMode):
        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor):
                sizes.append(out.numel())
            return out

    count, length = 64, 16
    model = made({"max_position_embeddings": 64, "vocab_size": 32})
    if segmented:
        model.set_attn_implementation(SEGMENTED)
    ids = list(range(length))
    with Sizes():
        trained(model, [join_examples([Example(ids, ids)] * count)])
    assert (max(sizes) >= (count * length) ** 2) != segmented


def test_sequences_of_one_segment_and_generated_text_are_as_ever() -> None:
    from zerotoolsd.trainer.data.example_pools import Example
    from zerotoolsd.trainer.model.segment_attention import SEGMENTED

    model, ids = made({}), list(range(3, 12))
    batch = [Example(ids, ids), Example(ids[:4], ids[:4])]
    prompt = torch.tensor([ids])
    loss, _ = trained(model, batch)
    said = model.generate(prompt, max_new_tokens=4, do_sample=False)
    model.set_attn_implementation(SEGMENTED)
    assert trained(model, batch)[0] == loss
    assert torch.equal(model.generate(prompt, max_new_tokens=4, do_sample=False), said)


def test_sequences_for_flash_attention_are_one_row() -> None:
    """transformers tells segments by their positions in a batch of one alone."""
    from zerotoolsd.trainer.data.packing import join_examples

    [*batch] = examples()
    joined = join_examples(batch)
    assert joined.segments == tuple(length for row in LENGTHS for length in row)
    model = made({})
    assert trained(model, [joined])[0] == pytest.approx(trained(model, batch)[0], rel=ROUNDING)
