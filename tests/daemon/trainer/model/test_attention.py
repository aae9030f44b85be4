"""The attention that a job names: refused before GPUs are taken where it cannot be had."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.launching import TINY_GPT2, TINY_LLAMA, job
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.jobfile.stored import read_stored

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
    with pytest.raises(BadRequest, match=r'computes in 16 bits, and train\.precision is "fp32"'):
        of(text, TINY_LLAMA, "flash_attention_2", **changes)


def test_a_package_that_is_missing_is_named(text: Path) -> None:
    from zerotoolsd.trainer.dry_run import rehearse

    with pytest.raises(BadRequest, match=r"needs flash-attn, which .* install flash-attn"):
        rehearse(of(text, TINY_LLAMA, "flash_attention_2", **GPU))


@pytest.mark.parametrize(
    ("config", "attention"), [(MAMBA, "sdpa"), ({"model_type": "bloom"}, "flex_attention")]
)
def test_what_the_model_does_not_have_is_refused(
    config: dict[str, Any], attention: str, text: Path
) -> None:
    from zerotoolsd.trainer.dry_run import rehearse

    with pytest.raises(Unsupported, match=r"transformers does not have it for \w+; take one of ea"):
        rehearse(of(text, config, attention, **GPU))


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_a_model_takes_what_it_is_told(attention: str, text: Path) -> None:
    from zerotoolsd.trainer.dry_run import rehearse
    from zerotoolsd.trainer.model.attention import set_attention
    from zerotoolsd.trainer.model.meta_model import draw, read_config

    spec = of(text, TINY_GPT2, attention)
    rehearse(spec)
    model = draw(read_config(spec.model)).model
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

    from zerotoolsd.trainer.model.attention import set_attention
    from zerotoolsd.trainer.model.meta_model import draw, read_config

    spec = of(text, config, "auto", train=train)
    spec = replace(spec, data=replace(spec.data, packing=packing))
    model = draw(read_config(spec.model)).model
    set_attention(spec, model)
    assert model.config._attn_implementation == wanted


def test_a_job_that_was_stored_before_attends_as_it_did(text: Path) -> None:
    spec = read_stored(job(text)).spec
    assert spec is not None
    assert spec.model.attention is None
