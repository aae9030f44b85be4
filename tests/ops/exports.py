"""Small checkpoints to export, and the weights of exports."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from tests.layouts import load
from zerotools import formats
from zerotools.core import dtypes
from zerotools.io.numeric.dtype_casts import Array, numpy_dtype
from zerotools.ops.conversions.consolidate import Options, prepare_export
from zerotools.ops.conversions.conversion import perform_conversion
from zerotools.ops.execution.tile_workers import MemoryBudget


def export(source: Path, destination: Path, **options: object) -> dict[str, Array]:
    """The weights of an export with these options."""
    conversion = prepare_export(source, destination, Options(**options))  # type: ignore[arg-type]
    perform_conversion(conversion, budget=MemoryBudget(), overwrite=False)
    return weights_of(destination)


def weights_of(directory: Path) -> dict[str, Array]:
    """What safetensors' own reader finds."""
    weights: dict[str, Array] = {}
    for file in sorted(directory.glob("*.safetensors")):
        weights |= load_file(file)
    return weights


def model(directory: Path, tensors: Mapping[str, Array], **files: str) -> Path:
    """A model directory as safetensors' own writer makes it, with text files beside it."""
    directory.mkdir(parents=True)
    save_file(dict(tensors), directory / "model.safetensors", {"format": "pt"})
    for name, text in files.items():
        (directory / name.replace("__", ".")).write_text(text)
    return directory


def masters(path: Path) -> dict[str, Array]:
    """The values of every `param`, read with numpy alone."""
    checkpoint = formats.read(path)
    keys = [key for key in checkpoint.tensors if key.role == "param"]
    return {key.name: load(checkpoint, key) for key in keys}


def noise(*shape: int, seed: int = 0) -> Array:
    """fp32 values that a 16-bit type has to round."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


BF16 = numpy_dtype(dtypes.BFLOAT16)
