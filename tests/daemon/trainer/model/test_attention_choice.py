"""The attention that a job names: refused before GPUs are taken where it cannot be had."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.launching import TINY_GPT2, TINY_LLAMA, job
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.jobfile.stored_job import read_stored

pytestmark = pytest.mark.torch
MAMBA = {"model_type": "mamba", "vocab_size": 256, "hidden_size": 32, "num_hidden_layers": 1}
GPU = {"device": "cuda", "ranks": None, "train": {"precision": "bf16"}}


def of(text: Path, config: dict[str, Any], attention: str, **changes: Any) -> Any:
    tree = job(text, model={"config": config, "attention": attention}, **changes)
    return job_from_dict({k: v for k, v in tree.items() if v is not None}, source="job")


@pytest.mark.parametrize("attention", ["flash_attention_2", "flash_attention_3", "flex_attention"])
def test_what_needs_a_gpu_is_refused_on_cpus(attention: str, text: Path) -> None:
    with pytest.raises(BadRequest, match=rf'model\.attention = "{attention}": is for GPUs; on'):
        of(text, TINY_LLAMA, attention)


def test_flash_attention_in_fp32_is_refused(text: Path) -> None:
    changes = {**GPU, "train": {"precision": "fp32"}}
    with pytest.raises(BadRequest, match=r'computes in 16 bits, but train\.precision is "fp32"'):
        of(text, TINY_LLAMA, "flash_attention_2", **changes)


def test_a_package_that_is_missing_is_named(text: Path) -> None:
    from zerotoolsd.trainer.preflight_model_and_data import check_job

    with pytest.raises(BadRequest, match=r"needs flash-attn, which .* install flash-attn"):
        check_job(of(text, TINY_LLAMA, "flash_attention_2", **GPU))


@pytest.mark.parametrize(
    ("config", "attention"), [(MAMBA, "sdpa"), ({"model_type": "bloom"}, "flex_attention")]
)
def test_what_the_model_does_not_have_is_refused(
    config: dict[str, Any], attention: str, text: Path
) -> None:
    from zerotoolsd.trainer.preflight_model_and_data import check_job

    with pytest.raises(
        Unsupported, match=r"transformers does not support it for \w+; use one of ea"
    ):
        check_job(of(text, config, attention, **GPU))


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_model_takes_what_it_is_told(attention: str, text: Path) -> None:
    from zerotoolsd.trainer.model.attention_choice import set_attention
    from zerotoolsd.trainer.model.meta_model import make_meta_model, read_config
    from zerotoolsd.trainer.preflight_model_and_data import check_job

    spec = of(text, TINY_GPT2, attention)
    check_job(spec)
    model = make_meta_model(read_config(spec.model)).model
    set_attention(spec, model)
    assert model.config._attn_implementation == attention


@pytest.mark.parametrize(
    ("config", "train", "packing", "wanted"),
    [
        (TINY_LLAMA, {}, True, "sdpa_by_segment"),
        (TINY_LLAMA, {}, False, "sdpa"),
        (TINY_LLAMA, {"compile": True}, True, "sdpa"),  # each batch would be compiled anew
        (MAMBA, {}, True, "eager"),
    ],
)
def test_packed_sequences_are_attended_by_segment(
    config: dict[str, Any], train: dict[str, Any], packing: bool, wanted: str, text: Path
) -> None:
    from dataclasses import replace

    from zerotoolsd.trainer.model.attention_choice import set_attention
    from zerotoolsd.trainer.model.meta_model import make_meta_model, read_config

    spec = of(text, config, "auto", train=train)
    spec = replace(spec, data=replace(spec.data, packing=packing))
    model = make_meta_model(read_config(spec.model)).model
    set_attention(spec, model)
    assert model.config._attn_implementation == wanted


def test_a_job_that_was_stored_before_attends_as_it_did(text: Path) -> None:
    spec = read_stored(job(text)).spec
    assert spec is not None
    assert spec.model.attention is None


@pytest.fixture
def theirs() -> Iterator[Any]:
    """transformers' module, which is afterwards as it was."""
    from transformers.integrations import sdpa_attention

    before = sdpa_attention.use_gqa_in_sdpa
    yield sdpa_attention
    sdpa_attention.use_gqa_in_sdpa = before


@pytest.mark.parametrize(
    ("dtype", "capability", "device", "shared"),
    [
        ("float32", (9, 0), "cuda", False),
        ("float16", (7, 0), "cuda", False),
        ("float16", (7, 5), "cuda", False),
        ("float16", (8, 0), "cuda", True),
        ("bfloat16", (12, 0), "cuda", True),
        ("float32", (7, 5), "cpu", True),
    ],
)
def test_keys_are_repeated_where_no_fused_kernel_shares_their_heads(
    theirs: Any, dtype: str, capability: tuple[int, int], device: str, shared: bool
) -> None:
    import torch

    from zerotoolsd.trainer.model.attention_choice import repeat_for

    key = SimpleNamespace(
        device=torch.device(device), dtype=getattr(torch, dtype), shape=(1, 8, 2048, 128)
    )
    # transformers 5.1 does not ask for the values.
    keys = (key,) * (len(inspect.signature(theirs.use_gqa_in_sdpa).parameters) - 1)
    assert theirs.use_gqa_in_sdpa(None, *keys), "what transformers does on every card"
    repeat_for((6, 1))
    repeat_for(capability)  # the last one holds
    assert theirs.use_gqa_in_sdpa(None, *keys) is shared


def test_repeated_heads_attend_as_shared_ones(theirs: Any) -> None:
    import torch

    torch.manual_seed(0)
    module = SimpleNamespace(num_key_value_groups=4, is_causal=True)
    query, key, value = (torch.randn(1, heads, 6, 8) for heads in (8, 2, 2))
    shared, _ = theirs.sdpa_attention_forward(module, query, key, value, None)
    theirs.use_gqa_in_sdpa = lambda *_: False
    repeated, _ = theirs.sdpa_attention_forward(module, query, key, value, None)
    torch.testing.assert_close(repeated, shared)


def test_the_log_says_which_kernel(theirs: Any) -> None:
    import torch

    from zerotoolsd.trainer.model.attention_choice import choose_kernel

    config = SimpleNamespace(
        _attn_implementation="sdpa", num_attention_heads=32, num_key_value_heads=8
    )
    model = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: config))
    gpu = torch.device("cuda", 0)
    spec: Any = SimpleNamespace(train=SimpleNamespace(precision="fp16"))
    assert choose_kernel(spec, model, gpu, lambda device: (7, 5)) == (
        "attention: torch's memory-efficient kernel, each head of keys repeated 4 times "
        "(float16, compute capability 7.5: no flash kernel)"
    )
    flash = choose_kernel(spec, model, gpu, lambda device: (9, 0))
    assert str(flash).startswith("attention: torch's flash kernel")
    assert choose_kernel(spec, model, torch.device("cpu")) is None
    config._attn_implementation = "eager"
    assert choose_kernel(spec, model, gpu) is None
