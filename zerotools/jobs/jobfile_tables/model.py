"""`[model]`: the model to train."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from zerotools.jobs.binding.declaration import key

AUTO = "auto"
FLASH = ("flash_attention_2", "flash_attention_3")
ATTENTIONS = (AUTO, "sdpa", *FLASH, "flex_attention", "eager")


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """`[model]`: the model to train. A job sets one of `config` and `path`."""

    config: str | Mapping[str, Any] | None = key(
        "A Hugging Face model config: a table here, or the path of a `config.json`. "
        "The weights are initialised from `seed`.",
        default=None,
        path=True,
    )
    path: str | None = key(
        "A Hugging Face model directory (config and safetensors) with the weights to start from.",
        default=None,
        path=True,
    )
    attention: str | None = key(
        "transformers' attention implementation. `\"auto\"`: torch's scaled_dot_product_attention "
        "if the model supports it. In packed sequences it is called once per example, so no mask "
        "over the whole sequence is needed.",
        default=AUTO,
        stored_default=None,
        allowed=ATTENTIONS,
        imported=False,
    )


def check_model(model: ModelSpec) -> Iterator[str]:
    """Yield the problems in `[model]`."""
    if model.config is None and model.path is None:
        yield (
            "model: needs model.path, or model.config to start from random weights; set one of them"
        )
    if model.config is not None and model.path is not None:
        yield "model: model.config and model.path cannot be combined; leave one out"
