"""Which kernel torch's scaled_dot_product_attention takes on a GPU, and heads that let it be fused.

    kernel      types             compute capability    keys have fewer heads than queries
    flash       fp16, bf16        8.0 and later         taken as they are
    efficient   fp32, fp16, bf16  5.0 and later         only repeated, once for each head of queries
    math        all               all                   taken as they are

The math kernel keeps the scores of all pairs of tokens for the backward pass: of Llama 3 8B, 608
MiB for each block and sequence of 2,048 tokens in fp32, while the efficient kernel keeps 128 MiB
with repeated keys. Without a mask, transformers leaves the heads as they are on every GPU.

Source: torch/csrc sdp_utils (`check_sm_version`, `check_batch_size_and_num_heads_dense`), and
transformers/integrations/sdpa_attention.py (`use_gqa_in_sdpa`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from transformers.integrations import sdpa_attention

from zerotools.jobs.tables.spec import JobSpec
from zerotools.sensors.snapshot import BF16_CAPABILITY
from zerotoolsd.trainer.memory.dtypes import TORCH_DTYPES
from zerotoolsd.trainer.model.segments import SEGMENTED

Capability = tuple[int, int]
FLASH_CAPABILITY: Capability = BF16_CAPABILITY
OF_CUDNN = ((9, 0), (10, 0))
"""GPUs (H100, B200) on which torch prefers cuDNN's kernel from cuDNN 9.15 on. It keeps the same."""
_CHOOSE = "use_gqa_in_sdpa"
"""The decision function of transformers; it is looked up at every call."""


def has_flash(dtype: torch.dtype, capability: Capability) -> bool:
    """Return whether torch has a flash kernel for this type on a GPU of this capability."""
    return dtype != torch.float32 and capability >= FLASH_CAPABILITY


def choose_kernel(
    spec: JobSpec,
    model: Any,
    device: torch.device,
    capability_of: Callable[[torch.device], Capability] = torch.cuda.get_device_capability,
) -> str | None:
    """Make transformers repeat keys and values if torch has no fused kernel on `device` otherwise.

    Returns:
        A line for the log with the kernel that the job gets. None on a CPU, and for a model that
        does not use torch's scaled_dot_product_attention: nothing is changed then.
    """
    config = model.config.get_text_config()
    attends = str(config._attn_implementation).startswith(("sdpa", SEGMENTED))
    if device.type != "cuda" or not attends:
        return None
    capability = capability_of(device)
    repeat_for(capability)
    heads = getattr(config, "num_attention_heads", 1)
    groups = heads // (getattr(config, "num_key_value_heads", None) or heads)
    return in_words(TORCH_DTYPES[spec.train.precision], capability, groups)


def in_words(dtype: torch.dtype, capability: Capability, groups: int) -> str:
    """Return a line for the log with the kernel of a model that has `groups` heads of queries for
    each head of keys."""
    major, minor = capability
    where = f"{str(dtype).removeprefix('torch.')}, compute capability {major}.{minor}"
    if has_flash(dtype, capability):
        kernel = "flash kernel, or cuDNN's" if capability in OF_CUDNN else "flash kernel"
        return f"attention: torch's {kernel} ({where}); with a mask, its memory-efficient kernel"
    repeated = f", each head of keys repeated {groups} times" if groups > 1 else ""
    return f"attention: torch's memory-efficient kernel{repeated} ({where}: no flash kernel)"


def repeat_for(capability: Capability) -> None:
    """Make transformers repeat heads of keys on GPUs of this capability, unless they have a flash
    kernel for the type."""
    theirs = getattr(sdpa_attention, _CHOOSE, None)
    if theirs is None:  # another release of transformers, which may repeat them
        return
    theirs = getattr(theirs, "theirs", theirs)

    def shares_heads(attention_mask: Any, key: torch.Tensor, *more: Any) -> bool:
        is_fused = key.device.type != "cuda" or has_flash(key.dtype, capability)
        return is_fused and bool(theirs(attention_mask, key, *more))

    shares_heads.theirs = theirs  # type: ignore[attr-defined]
    setattr(sdpa_attention, _CHOOSE, shares_heads)
