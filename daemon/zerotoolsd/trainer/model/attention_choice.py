"""Sets the attention implementation of transformers for a job's model, and torch's attention kernel
on a GPU.

    kernel      dtypes            compute capability    keys with fewer heads than queries
    flash       fp16, bf16        8.0 and later         supported
    efficient   fp32, fp16, bf16  5.0 and later         only if repeated, once for each query head
    math        all               all                   supported

The math kernel keeps the scores of all pairs of tokens for the backward pass. For Llama 3 8B in
fp32 that is 608 MiB for each block and sequence of 2,048 tokens. The efficient kernel keeps 128
MiB, with repeated keys. Without a mask, transformers does not repeat the keys, so torch would use
the math kernel. `choose_kernel` makes transformers repeat them where no flash kernel exists.

Source: torch/csrc sdp_utils (`check_sm_version`, `check_batch_size_and_num_heads_dense`), and
transformers/integrations/sdpa_attention.py (`use_gqa_in_sdpa`).
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import torch
from transformers.integrations import sdpa_attention

from zerotools.core.errors import BadRequest, Unsupported
from zerotools.io.files.optional_packages import install_command
from zerotools.jobs.jobfile_tables.model import AUTO
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.sensors.snapshot import BF16_CAPABILITY
from zerotoolsd.trainer.allocate_tensors import TORCH_DTYPES
from zerotoolsd.trainer.model.segment_attention import SEGMENTED, segments_of
from zerotoolsd.trainer.model.tiny_model import small_model

TOLERANCE = 1e-4
"""Largest accepted difference of fp32 logits, relative to the largest logit."""
_FLAGS = {
    "sdpa": "_supports_sdpa",
    "flash_attention_2": "_supports_flash_attn",
    "flash_attention_3": "_supports_flash_attn",
    "flex_attention": "_supports_flex_attn",
}
"""For each implementation, the attribute of a model class that says whether the class supports
it.
"""
_PACKAGES = {
    "flash_attention_2": ("flash_attn", "flash-attn"),
    "flash_attention_3": ("flash_attn_interface", "flash-attn-3"),
}
"""For each implementation, the module that it needs and the package that contains this module."""
_TRIED = (5, 2, 6)
"""Lengths of the segments of the test sequence."""


def check_attention(spec: JobSpec, model: Any) -> None:
    """Check that the job's attention implementation (`model.attention`) is available for `model`.

    Raises:
        BadRequest: this interpreter lacks a package that the implementation needs.
        Unsupported: transformers does not have this implementation for the model.
    """
    wanted = spec.model.attention
    if wanted in (None, AUTO, "eager"):
        return
    said = f'model.attention = "{wanted}"'
    if not getattr(model, _FLAGS[wanted], False):
        others = [name for name, flag in _FLAGS.items() if getattr(model, flag, False)]
        raise Unsupported(
            f"{said}: transformers does not support it for {type(model).__name__}; use one of "
            f'{", ".join(["eager", *others])}, or "{AUTO}"'
        )
    module, package = _PACKAGES.get(wanted, ("torch", "torch"))
    if importlib.util.find_spec(module) is None:
        raise BadRequest(
            f"{said}: needs {package}, which {sys.executable} does not have; run "
            f"{install_command(package)}"
        )


def set_attention(spec: JobSpec, model: Any) -> None:
    """Set the attention implementation of `model` as the job requires.

    Raises:
        Unsupported: this interpreter does not have this implementation.
    """
    wanted = spec.model.attention
    if wanted == AUTO:
        wanted = SEGMENTED if attends_by_segment(spec, model.config) else None
    if wanted is None:
        return
    try:
        model.set_attn_implementation(wanted)
    except (ValueError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise Unsupported(f'model.attention = "{wanted}": {reason}') from None
    if model.config.get_text_config()._attn_implementation != wanted:
        raise Unsupported(
            f'model.attention = "{wanted}": transformers cannot set it for '
            f'{type(model).__name__}; set it to "{AUTO}"'
        )


def attends_by_segment(spec: JobSpec, config: Any) -> bool:
    """Return whether the attention of packed sequences can be computed segment by segment, without
    a mask.

    This is the case if the job packs, and a small model of `config` computes the same logits with
    segments as with a mask.
    """
    if not spec.data.packing or spec.train.compile or config.is_encoder_decoder:
        return False
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        try:
            model = small_model(config)
            return model is not None and _is_same(model.eval())
        except Exception:  # any error of a model about a mask that is not a tensor
            return False


def _is_same(model: Any) -> bool:
    if model.config.get_text_config()._attn_implementation != "sdpa":
        return False
    ids = torch.randint(3, model.config.get_text_config().vocab_size, (1, sum(_TRIED)))
    places = torch.tensor([[place for size in _TRIED for place in range(size)]])
    arguments = {"input_ids": ids, "position_ids": places, "use_cache": False}
    wanted = model(**arguments).logits
    model.set_attn_implementation(SEGMENTED)
    with segments_of(model, [_TRIED]):
        found = model(**arguments).logits
    return bool((found - wanted).abs().max() <= TOLERANCE * wanted.abs().max())


Capability = tuple[int, int]
FLASH_CAPABILITY: Capability = BF16_CAPABILITY
OF_CUDNN = ((9, 0), (10, 0))
"""Compute capabilities of GPUs (H100, B200) on which torch prefers cuDNN's kernel, from cuDNN 9.15
on.

This kernel keeps as much memory as the flash kernel.
"""
_CHOOSE = "use_gqa_in_sdpa"
"""Name of the function of transformers that decides whether heads are repeated.

transformers looks this function up at each call, so it can be replaced.
"""


def has_flash(dtype: torch.dtype, capability: Capability) -> bool:
    """Return whether torch has a flash kernel for tensors of `dtype` on GPUs of this
    compute capability.
    """
    return dtype != torch.float32 and capability >= FLASH_CAPABILITY


def choose_kernel(
    spec: JobSpec,
    model: Any,
    device: torch.device,
    capability_of: Callable[[torch.device], Capability] = torch.cuda.get_device_capability,
) -> str | None:
    """Make transformers repeat the heads of keys and values, if torch needs this for a fused
    attention kernel on `device`.

    Return a line for the log that names the kernel. Return None, and change nothing, on a CPU or if
    the model does not use torch's scaled_dot_product_attention.
    """
    config = model.config.get_text_config()
    attends = str(config._attn_implementation).startswith(("sdpa", SEGMENTED))
    if device.type != "cuda" or not attends:
        return None
    capability = capability_of(device)
    repeat_for(capability)
    heads = getattr(config, "num_attention_heads", 1)
    groups = heads // (getattr(config, "num_key_value_heads", None) or heads)
    return describe_kernel(TORCH_DTYPES[spec.train.precision], capability, groups)


def describe_kernel(dtype: torch.dtype, capability: Capability, groups: int) -> str:
    """Return a line for the log that names the attention kernel of a model.

    `groups` is the number of query heads for each key head.
    """
    major, minor = capability
    where = f"{str(dtype).removeprefix('torch.')}, compute capability {major}.{minor}"
    if has_flash(dtype, capability):
        kernel = "flash kernel, or cuDNN's" if capability in OF_CUDNN else "flash kernel"
        return f"attention: torch's {kernel} ({where}); with a mask, its memory-efficient kernel"
    repeated = f", each head of keys repeated {groups} times" if groups > 1 else ""
    return f"attention: torch's memory-efficient kernel{repeated} ({where}: no flash kernel)"


def repeat_for(capability: Capability) -> None:
    """Make transformers repeat the heads of keys on GPUs of this compute capability.

    If a dtype has a flash kernel on these GPUs, heads of this dtype are not repeated.
    """
    theirs = getattr(sdpa_attention, _CHOOSE, None)
    if theirs is None:  # another release of transformers, which may repeat them
        return
    theirs = getattr(theirs, "theirs", theirs)

    def shares_heads(attention_mask: Any, key: torch.Tensor, *more: Any) -> bool:
        is_fused = key.device.type != "cuda" or has_flash(key.dtype, capability)
        return is_fused and bool(theirs(attention_mask, key, *more))

    shares_heads.theirs = theirs  # type: ignore[attr-defined]
    setattr(sdpa_attention, _CHOOSE, shares_heads)
