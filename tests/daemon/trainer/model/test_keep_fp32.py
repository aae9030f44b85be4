"""What transformers keeps in fp32 is computed with in fp32."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from zerotools.core.errors import Unsupported
from zerotools.jobs.jobfile_tables.train import TrainSpec

pytestmark = pytest.mark.torch


def drawn(name: str) -> Any:
    from benchmarks.architectures.configs import tiny_config
    from zerotoolsd.trainer.model.meta_model import make_meta_model

    return make_meta_model(tiny_config(name))


def train(precision: str, *, keep: bool = True) -> TrainSpec:
    return TrainSpec(batch_size=1, precision=precision, keep_fp32=keep)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("name", ["deepseek_v3", "ernie4_5_moe", "gpt_oss", "llama"])
def test_the_names_are_those_that_from_pretrained_keeps(
    tmp_path: Path, name: str, precision: str
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    from benchmarks.architectures.configs import tiny_config
    from zerotoolsd.trainer.allocate_tensors import TORCH_DTYPES
    from zerotoolsd.trainer.model.keep_fp32 import kept_in_fp32

    AutoModelForCausalLM.from_config(tiny_config(name)).save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=TORCH_DTYPES[precision])
    theirs = {key for key, value in loaded.state_dict().items() if value.dtype == torch.float32}
    model = drawn(name).model
    ours = kept_in_fp32(model, train(precision))
    assert ours & model.state_dict().keys() == theirs
    assert kept_in_fp32(model, train("fp32")) == frozenset()
    assert kept_in_fp32(model, train(precision, keep=False)) == frozenset()


@pytest.fixture
def alone() -> Iterator[None]:
    """A process group of this process."""
    import torch.distributed as dist

    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    yield
    dist.destroy_process_group()


def computed(name: str, precision: str, **layout: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Types of the model's parameters between steps, and of those that its modules find."""
    import torch

    from zerotools.core.training_memory_layout import MemoryLayout
    from zerotoolsd.trainer.allocate_tensors import make_memory
    from zerotoolsd.trainer.model.keep_fp32 import kept_in_fp32
    from zerotoolsd.trainer.model.sharding import shard_model

    meta_model = drawn(name)

    class Sharded(MemoryLayout):
        is_sharded = True

    kind = Sharded if layout.pop("sharded") else MemoryLayout
    memory_layout = kind(world_size=1, precision=precision, **layout)
    memory = make_memory(torch.device("cpu"), memory_layout.state_tier)
    kept = kept_in_fp32(meta_model.model, train(precision))
    model = shard_model(meta_model, memory_layout, memory, kept=kept)
    for tensor in (*model.parameters(), *model.buffers()):
        getattr(tensor, "_local_tensor", tensor).data.fill_(0.01)
    found: dict[str, Any] = {}
    for prefix, module in model.named_modules():

        def look(module: Any, arguments: Any, prefix: str = prefix) -> None:
            for key, value in module.named_parameters(prefix, recurse=False):
                found[key] = value.dtype

        module.register_forward_pre_hook(look)
    model(input_ids=torch.arange(3, 19).view(1, 16), use_cache=False).logits.sum().backward()
    return {key: value.dtype for key, value in model.named_parameters()}, found


@pytest.mark.usefixtures("alone")
@pytest.mark.parametrize(
    "layout",
    [
        {"stage": 1, "sharded": True},
        {"stage": 3, "sharded": True, "accumulate": "sharded"},
        {"stage": 2, "sharded": True, "offload_optimizer": "cpu"},
        {"stage": 3, "sharded": False},
    ],
)
def test_only_what_is_kept_is_computed_with_in_fp32(layout: dict[str, Any]) -> None:
    import torch

    held, found = computed("ernie4_5_moe", "bf16", **layout)
    gates = {key for key in found if key.endswith(("gate.weight", "e_score_correction_bias"))}
    assert gates
    assert {key for key, dtype in found.items() if dtype == torch.float32} == gates
    assert {held[key] for key in gates} == {torch.float32}
    others = {dtype for key, dtype in held.items() if key not in gates}
    assert others == {torch.float32 if "accumulate" in layout else torch.bfloat16}


def test_one_beside_others_in_a_module_is_refused() -> None:
    from zerotoolsd.trainer.model.keep_fp32 import gathered_separately

    model = drawn("llama").model
    assert gathered_separately(model, frozenset()) == []
    name = "model.layers.0.self_attn.q_proj.weight"
    assert gathered_separately(model, frozenset({name})) == [
        ("model.layers.0.self_attn.q_proj", True)
    ]
    gpt2 = drawn("gpt2").model
    with pytest.raises(Unsupported, match=r"c_attn\.weight in fp32 but not .*c_attn\.bias"):
        gathered_separately(gpt2, frozenset({"transformer.h.0.attn.c_attn.weight"}))


def test_a_parameter_above_others_is_gathered_without_them() -> None:
    from zerotoolsd.trainer.model.keep_fp32 import gathered_separately

    model = drawn("gpt_oss").model
    attention = "model.layers.0.self_attn"
    found = dict(gathered_separately(model, frozenset({f"{attention}.sinks"})))
    below = {f"{attention}.{name}": False for name in ("q_proj", "k_proj", "v_proj", "o_proj")}
    assert found == {**below, attention: True}
    assert list(found)[-1] == attention
