"""Quantise weights to fp8 or MXFP8 with scales, for serving: select the weights, and make the names
of the new tensors and the config.

Like the fp8 quantiser of transformers (`integrations/finegrained_fp8.py`, `Fp8Quantize`), it
quantises the matrices of linear layers with shapes that are whole blocks. Embeddings, the head,
routers, norms and biases stay unchanged. The config lists the modules of unchanged matrices.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from zerotools.core import dtypes
from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.dtypes import DType
from zerotools.core.errors import BadRequest
from zerotools.core.quantisation_schemes import VALUES, BlockQuantised, scale_shape
from zerotools.core.scaled_cast import ScaledCast
from zerotools.io.huggingface.model_sidecars import CONFIG
from zerotools.ops.quantised.quantisation_config import model_type
from zerotools.ops.quantised.quantised_weights import Quantisation

FP8_BLOCK, MXFP8 = "fp8-block", "mxfp8"
_WEIGHT, _SUFFIX = ".weight", "_scale_inv"
_KEPT = re.compile(r"(^|\.)(lm_head|wte|wpe|gate|router|shared_expert_gate|[^.]*embed[^.]*|"
                   r"[^.]*norm[^.]*|score|classifier|v_head)\.")  # fmt: skip
_TRANSPOSED = ("gpt2", "openai-gpt", "imagegpt")
"""Model types with transposed linear layers; transformers quantises none of them."""
_FLOATS = (dtypes.BFLOAT16, dtypes.FLOAT16, dtypes.FLOAT32)
_HEAD = "lm_head"


@dataclass(frozen=True)
class Quantiser:
    """A method to quantise weights.

    `scales` is the dtype of its scales, and `block` the block that shares one. `settings` is its
    `quantization_config`.
    """

    title: str
    block: tuple[int, int]
    scales: DType
    settings: Mapping[str, object]


QUANTISERS = {
    FP8_BLOCK: Quantiser(
        "fp8 blocks 128x128",
        (128, 128),
        dtypes.FLOAT32,
        {"quant_method": "fp8", "fmt": "e4m3", "scale_fmt": "float"},
    ),
    MXFP8: Quantiser(
        "mxfp8 groups of 32",
        (1, 32),
        dtypes.UINT8,
        {"quant_method": "mxfp8", "fmt": "e4m3", "scale_fmt": "ue8m0"},
    ),
}
"""The quantisers, keyed by the value of `--dtype`."""


@dataclass(frozen=True)
class Quantised:
    """The result of quantising a model.

    `weights` have payloads and scales in place of matrices. `settings` is the
    `quantization_config`, and `note` is a sentence for the user.
    """

    weights: Checkpoint
    settings: dict[str, object]
    note: str


def quantise_weights(weights: Checkpoint, found: Quantisation, name: str) -> Quantised:
    """Quantise the weights with the quantiser `name`.

    Raises:
        BadRequest: the weights are already quantised or no weight can be quantised, config.json
            does not exist, or transformers does not quantise this model.
    """
    quantiser, path = QUANTISERS[name], weights.origin.path
    if found.is_there:
        what = found.words() or str(found.error())
        raise BadRequest(
            f"{path} is already quantised ({what}); write it with --dtype bf16 first, and "
            "quantise the output"
        )
    config = weights.model_sidecars.get(CONFIG)
    if config is None:
        raise BadRequest(
            f"--dtype {name} needs the model's {CONFIG}, to record the quantisation in it; pass "
            "--config-dir DIR"
        )
    if (kind := model_type(config)) in _TRANSPOSED:
        raise BadRequest(
            f"{config} has model_type {kind}, and transformers does not quantise the layers of "
            f"this model; leave --dtype {name} out"
        )
    tensors, kept, count = _tensors(weights, quantiser)
    if not count:
        raise BadRequest(
            f"{path} has no matrix with a shape that is a multiple of {_words(quantiser)}"
        )
    settings = {
        **quantiser.settings,
        "activation_scheme": "dynamic",
        "weight_block_size": list(quantiser.block),
        "modules_to_not_convert": kept,
    }
    note = f"quantised: {quantiser.title}, {count_text(count, 'tensor')}"
    if left := len(weights.tensors) - count:
        note += (
            f"; left unchanged: {count_text(left, 'tensor')} (embeddings, head, routers, norms, "
            f"biases, and shapes that are not a multiple of {_words(quantiser)})"
        )
    return Quantised(replace(weights, tensors=tensors), settings, note)


def _words(quantiser: Quantiser) -> str:
    return "x".join(map(str, quantiser.block))


def _tensors(weights: Checkpoint, quantiser: Quantiser) -> tuple[dict[Key, Tensor], list[str], int]:
    """Return the tensors of the output, the modules that stay unquantised, and the number of
    quantised matrices."""
    tensors: dict[Key, Tensor] = {}
    kept: dict[str, None] = {_HEAD: None}
    count = 0
    for key, tensor in weights.tensors.items():
        if not _is_linear(key, tensor, quantiser.block):
            tensors[key] = tensor
            if len(tensor.shape) > 1:
                kept[key.name.rpartition(".")[0] or key.name] = None
            continue
        count += 1
        shape, scales = tensor.shape, Key(key.name + _SUFFIX, key.role)
        if scales in weights.tensors:
            raise BadRequest(
                f"{scales.name} already exists, but this name is needed for the scales of "
                f"{key.name}"
            )
        is_exponent = quantiser.scales == dtypes.UINT8
        for part, dtype, size in (
            (key, dtypes.FLOAT8_E4M3FN, shape),
            (scales, quantiser.scales, scale_shape(shape, quantiser.block)),
        ):
            scheme = BlockQuantised(shape, quantiser.block, part is scales, is_exponent)
            tensors[part] = ScaledCast(dtype, size, (), scheme, {VALUES: tensor})
    return tensors, list(kept), count


def _is_linear(key: Key, tensor: Tensor, block: tuple[int, int]) -> bool:
    return (
        key.role == "param"
        and key.name.endswith(_WEIGHT)
        and _KEPT.search(key.name) is None
        and tensor.dtype in _FLOATS
        and len(tensor.shape) == 2
        and all(size and not size % of for size, of in zip(tensor.shape, block, strict=True))
    )
