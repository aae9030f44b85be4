"""Small models with quantised weights, whose numbers are drawn."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from tests.formats.safetensors.files import entry, file_bytes
from zerotools import formats
from zerotools.core.checkpoint import Checkpoint
from zerotools.core.dtypes import dtype_named
from zerotools.io.numeric.dtype_casts import Array

FP8: dict[str, Any] = {"quant_method": "fp8", "weight_block_size": [128, 128]}
BNB: dict[str, Any] = {"quant_method": "bitsandbytes", "load_in_4bit": True}


def fp8(*shape: int, seed: int = 0) -> Array:
    """Payload without NaN."""
    drawn = np.random.default_rng(seed).integers(0, 127, prod(shape), np.uint8)
    return drawn.reshape(shape).view(ml_dtypes.float8_e4m3fn)


def scales(*shape: int, seed: int = 1) -> Array:
    drawn = np.random.default_rng(seed).random(shape, np.float32)
    return np.asarray(drawn * np.float32(0.01) + np.float32(0.001))


def plain(*shape: int, seed: int = 2) -> Array:
    drawn = np.random.default_rng(seed).standard_normal(shape)
    return np.asarray(drawn).astype(ml_dtypes.bfloat16)


def fp8_tensors(rows: int = 130, columns: int = 256) -> dict[str, Array]:
    """A weight with an edge block, by default, and a norm."""
    grid = (-(-rows // 128), -(-columns // 128))
    return {
        "a.weight": fp8(rows, columns),
        "a.weight_scale_inv": scales(*grid),
        "norm.weight": plain(16),
    }


def nf4_tensors(state: Any, count: int = 256) -> dict[str, Array]:
    """`count` elements in blocks of 64; `state` is what the JSON says, or bytes."""
    said = state if isinstance(state, bytes) else json.dumps(state).encode()
    return {
        "a.weight": np.arange(count // 2, dtype=np.uint8).reshape(-1, 1),
        "a.weight.absmax": scales(-(-count // 64)),
        "a.weight.quant_map": np.linspace(-1, 1, 16, dtype=np.float32),
        "a.weight.quant_state.bitsandbytes__nf4": np.frombuffer(said, np.uint8),
    }


STATE: dict[str, Any] = {"shape": [16, 16], "blocksize": 64, "dtype": "bfloat16"}


def write(
    directory: Path, tensors: Mapping[str, Array], settings: Mapping[str, Any] | None
) -> Path:
    """A model directory; `settings` are the config's quantization_config."""
    directory.mkdir(parents=True)
    header, data = {}, b""
    for name, array in tensors.items():
        word = dtype_named(array.dtype.name).safetensors
        assert word is not None
        raw = array.tobytes()
        header[name] = entry(word, list(array.shape), len(data), len(data) + len(raw))
        data += raw
    (directory / "model.safetensors").write_bytes(file_bytes(header, data))
    config: dict[str, Any] = {"torch_dtype": "bfloat16"}
    if settings is not None:
        config["quantization_config"] = dict(settings)
    (directory / "config.json").write_text(json.dumps(config))
    return directory


def read(
    directory: Path, tensors: Mapping[str, Array], settings: Mapping[str, Any] | None
) -> Checkpoint:
    return formats.read(write(directory, tensors, settings))
