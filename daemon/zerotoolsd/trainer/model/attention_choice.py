"""The choice of transformers' attention implementation for a job's model."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import torch
from transformers.integrations import sdpa_attention

from zerotools.core.errors import BadRequest, Unsupported
from zerotools.io.files.packages import install_command
from zerotools.jobs.tables.model import AUTO
from zerotools.jobs.tables.spec import JobSpec
from zerotools.sensors.snapshot import BF16_CAPABILITY
from zerotoolsd.trainer.memory_tiers import TORCH_DTYPES
from zerotoolsd.trainer.model.segment_attention import SEGMENTED, segments_of
from zerotoolsd.trainer.model.tiny_model import small_model

TOLERANCE = 1e-4
"""Largest difference of logits in fp32, relative to the largest logit."""
_FLAGS = {
    "sdpa": "_supports_sdpa",
    "flash_attention_2": "_supports_flash_attn",
    "flash_attention_3": "_supports_flash_attn",
    "flex_attention": "_supports_flex_attn",
}
"""Flags of a model's class for the supported implementations."""
_PACKAGES = {
    "flash_attention_2": ("flash_attn", "flash-attn"),
    "flash_attention_3": ("flash_attn_interface", "flash-attn-3"),
}
"""The module, and the package that it comes with."""
_TRIED = (5, 2, 6)
"""The lengths of segments with which a model is tried."""


def check_attention(spec: JobSpec, model: Any) -> None:
    """Refuse an implementation that `model` does not have, or this interpreter.

    Raises:
        BadRequest: its package is missing.
        Unsupported: transformers has it not for this model.
    """
    wanted = spec.model.attention
    if wanted in (None, AUTO, "eager"):
        return
    said = f'model.attention = "{wanted}"'
    if not getattr(model, _FLAGS[wanted], False):
        others = [name for name, flag in _FLAGS.items() if getattr(model, flag, False)]
        raise Unsupported(
            f"{said}: transformers does not have it for {type(model).__name__}; take one of "
            f'{", ".join(["eager", *others])}, or "{AUTO}"'
        )
    module, package = _PACKAGES.get(wanted, ("torch", "torch"))
    if importlib.util.find_spec(module) is None:
        raise BadRequest(
            f"{said}: needs {package}, which {sys.executable} does not have; run "
            f"{install_command(package)}"
        )


def set_attention(spec: JobSpec, model: Any) -> None:
    """Set the attention of `model` according to the job.

    Raises:
        Unsupported: it is not available here.
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
            f'model.attention = "{wanted}": transformers cannot set it for {type(model).__name__}; '
            f'take "{AUTO}"'
        )


def attends_by_segment(spec: JobSpec, config: Any) -> bool:
    """Return whether packed sequences need no mask.

    This holds if the job packs, a model of `config` attends by segment, and its logits equal those
    with a mask.
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
