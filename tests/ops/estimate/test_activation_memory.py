"""Activations, compared with a count of the bytes that are alive in real passes."""

from __future__ import annotations

import gc
from dataclasses import dataclass, replace
from typing import Any

import pytest

from tests.matrices import FULL
from tests.ops.estimate.tiny_configs import config
from zerotools.ops.estimate.activation_memory import MicroBatch, activations_of, attention_on_gpus
from zerotools.ops.estimate.model_families import FAMILIES, Architecture, architecture_of

MICRO = MicroBatch(batch=2, sequence=48, precision="fp32")
IDS = 24 * MICRO.tokens
"""Of token ids and the like, which are given in the count."""
TOLERANCE = 0.05


def architecture(name: str, **changes: object) -> Architecture:
    found = architecture_of(config(name, **changes), "config")
    assert found is not None
    return found


def counted(name: str, micro: MicroBatch) -> int:
    """Bytes that the forward pass leaves for the backward pass, the last hidden states too. Those
    of tensor ranks are counted in one process, of all of them."""
    import torch
    from transformers import AutoModelForCausalLM

    from benchmarks.loss.live_bytes import LiveBytes
    from zerotools.jobs.jobfile_tables.model import ModelSpec
    from zerotoolsd.trainer.check_tensor_parallel import fold_ranks
    from zerotoolsd.trainer.model.meta_model import checkpoint_activations, read_config
    from zerotoolsd.trainer.sequence_parallel.sequence_attention import attend_over_ranks
    from zerotoolsd.trainer.sequence_parallel.split_batch import (
        SequencePart,
        reading_own_part,
        set_sequence_part,
    )
    from zerotoolsd.trainer.tensor_parallel.plan_layer_cuts import layer_cuts

    known = read_config(ModelSpec(config=config(name))).to_dict()
    dropping = [key for key in known if "drop" in key]
    tree = config(name) | {key: 0.0 for key in dropping if isinstance(known[key], float)}
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[micro.precision]
    model = AutoModelForCausalLM.from_config(
        read_config(ModelSpec(config=tree)), attn_implementation=micro.attention
    ).to(dtype)
    model.train()
    if micro.checkpointing:
        checkpoint_activations(model)
    ranks = micro.tensor_ranks
    fold_ranks(model, layer_cuts(model, ranks))
    ids = torch.full((ranks * micro.batch, micro.sequence), 3)
    given = [*model.parameters(), *model.buffers(), ids]
    if micro.sequence_ranks > 1:
        attend_over_ranks(model, micro.sequence_ranks)
        set_sequence_part(model, SequencePart(Echo(0, micro.sequence_ranks)))
    gc.freeze()  # so that what is collected below is what the passes made
    with (
        LiveBytes(given) as live,
        reading_own_part(model, {"input_ids": ids}, ids) as (arguments, _),
    ):
        hidden = model.base_model(**arguments, use_cache=False).last_hidden_state
        gc.collect()
        kept = live.now
    gc.unfreeze()
    assert hidden.shape[:2] == (ranks * micro.batch, micro.stretch)
    return kept // ranks


@dataclass(frozen=True)
class Echo:
    """Ranks of which each says what this one says: bytes are those of several."""

    index: int
    ranks: int

    def swap(self, blocks: Any) -> Any:
        return blocks.clone()

    def total(self, values: Any) -> Any:
        return values * self.ranks


@pytest.mark.torch
# Families differ in what they keep; precisions, in how many bytes that has.
@pytest.mark.parametrize("precision", ["fp32", "bf16"] if FULL else ["bf16"])
@pytest.mark.parametrize("name", FAMILIES)
def test_what_is_kept_is_what_is_counted(name: str, precision: str) -> None:
    for micro in (
        replace(MICRO, precision=precision),
        replace(MICRO, precision=precision, checkpointing=True),
    ):
        predicted = activations_of(architecture(name), micro).kept - IDS
        assert predicted == pytest.approx(counted(name, micro), rel=TOLERANCE)


@pytest.mark.torch
@pytest.mark.parametrize("name", ["llama", "gpt2", "opt"])
def test_eager_attention_keeps_its_probabilities(name: str) -> None:
    micro = replace(MICRO, attention="eager", precision="bf16")
    predicted = activations_of(architecture(name), micro).kept - IDS
    assert predicted == pytest.approx(counted(name, micro), rel=0.1)


@pytest.mark.torch
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("name", FAMILIES if FULL else ["llama", "gpt2", "phi3"])
def test_of_a_sequence_that_ranks_share_a_stretch_is_kept(name: str, ranks: int) -> None:
    micro = replace(MICRO, sequence=96, precision="bf16", sequence_ranks=ranks)
    model = architecture(name)
    predicted = activations_of(model, micro).kept  # the ids are made in the count
    assert predicted == pytest.approx(counted(name, micro), rel=TOLERANCE)
    whole = activations_of(model, replace(micro, sequence_ranks=1)).kept
    assert activations_of(model, micro).kept < 1.3 * whole / ranks


@pytest.mark.torch
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_a_tensor_rank_keeps_its_part_of_attention_and_mlp(name: str) -> None:
    micro = replace(MICRO, precision="bf16", tensor_ranks=2)
    predicted = activations_of(architecture(name), micro).kept - IDS
    assert predicted == pytest.approx(counted(name, micro), rel=TOLERANCE)
    assert predicted < activations_of(architecture(name), replace(micro, tensor_ranks=1)).kept


@pytest.mark.torch
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_a_tensor_rank_keeps_its_part_of_a_stretch(name: str) -> None:
    micro = replace(MICRO, sequence=96, precision="bf16", tensor_ranks=2, sequence_ranks=2)
    model = architecture(name)
    predicted = activations_of(model, micro).kept
    assert predicted == pytest.approx(counted(name, micro), rel=TOLERANCE)
    assert predicted < 0.65 * activations_of(model, replace(micro, sequence_ranks=1)).kept


def test_the_worked_example() -> None:
    llama = replace(
        architecture("llama"),
        layers=1,
        hidden=4096,
        heads=32,
        kv_heads=8,
        head_dim=128,
        intermediate=14336,
    )
    one = MicroBatch(batch=1, sequence=1024)
    more = activations_of(replace(llama, layers=2), one).kept - activations_of(llama, one).kept
    assert more == 200_840 * 1024


def test_without_a_flash_kernel_keys_and_values_are_as_wide_as_queries() -> None:
    """32 heads of queries and 8 of keys, 2,048 tokens in fp32: 128 MiB in place of 80."""
    llama = replace(architecture("llama"), layers=1, heads=32, kv_heads=8, head_dim=128)
    shared = MicroBatch(batch=1, sequence=2048, precision="fp32")
    repeated = replace(shared, attention=attention_on_gpus("fp32"))
    more = activations_of(llama, repeated).kept - activations_of(llama, shared).kept
    assert more == 48 << 20
    assert attention_on_gpus("fp16") == repeated.attention
    assert attention_on_gpus("bf16") == shared.attention
    alike = replace(llama, kv_heads=32)
    assert activations_of(alike, repeated) == activations_of(alike, shared)


def test_checkpointing_keeps_the_inputs_of_blocks() -> None:
    llama = architecture("llama")
    whole = activations_of(llama, MICRO)
    again = activations_of(llama, replace(MICRO, checkpointing=True))
    assert again.kept < whole.kept
    assert again.block > whole.block
    deeper = activations_of(replace(llama, layers=4), replace(MICRO, checkpointing=True))
    assert deeper.kept - again.kept == MICRO.tokens * 4 * llama.hidden


def test_the_loss_is_what_is_most_for_a_wide_vocabulary() -> None:
    llama = replace(architecture("llama"), vocabulary=100_000)
    found = activations_of(llama, replace(MICRO, checkpointing=True))
    assert found.loss > found.block
    assert found.most == found.kept + found.loss
