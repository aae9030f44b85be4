"""The choice of transformers' attention implementation for a job's model."""

from __future__ import annotations

import importlib.util
import sys
from typing import Any

import torch

from zerotools.core.errors import BadRequest, Unsupported
from zerotools.io.files.packages import install_command
from zerotools.jobs.tables.model import AUTO
from zerotools.jobs.tables.spec import JobSpec
from zerotoolsd.trainer.model.segments import SEGMENTED, segments_of
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
