"""Small models for tests of deltas, and their tensors."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from safetensors.numpy import load_file, save_file

from zerotools.io.output.output_marker import MARKER

BF16 = ml_dtypes.bfloat16
LARGE = (1100, 1000)
"""The shape of a tensor of two blocks."""


def weights(seed: int = 0, dtype: Any = BF16) -> dict[str, Any]:
    """Tensors of a model: one of two blocks, one of one dimension, a scalar, an empty one, and a
    buffer of integers. They are drawn once, and cannot be written to."""
    return dict(_drawn(seed, dtype))


@cache
def _drawn(seed: int, dtype: Any) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    found = {
        "a.weight": rng.standard_normal(LARGE).astype(dtype),
        "b.weight": rng.standard_normal((3, 5, 7)).astype(dtype),
        "norm.weight": np.ones(64, np.float32),
        "scale": np.array(2.5, dtype),
        "none": np.zeros((0, 4), dtype),
        "steps": np.arange(10, dtype=np.int64),
    }
    for array in found.values():
        array.setflags(write=False)
    return found


def stepped(tensors: dict[str, Any], part: float, seed: int = 1) -> dict[str, Any]:
    """The same tensors after a step: this part of the elements of the large one moved a little."""
    rng = np.random.default_rng(seed)
    large = tensors["a.weight"]
    raw = large.view(np.uint16 if large.dtype.itemsize == 2 else np.uint32).copy()
    moved = rng.random(raw.shape) < part
    raw[moved] += rng.choice(np.array([1, -1]), int(moved.sum())).astype(raw.dtype)
    return {**tensors, "a.weight": raw.view(large.dtype), "norm.weight": tensors["norm.weight"] * 2}


def write_model(path: Path, tensors: dict[str, Any], *, files: int = 1, **config: Any) -> Path:
    """Write a model directory with the tensors in this number of files."""
    path.mkdir()
    names, index = list(tensors), {}
    for number in range(files):
        part = {name: tensors[name] for name in names[number::files]}
        file = f"model-{number + 1:05d}-of-{files:05d}.safetensors"
        save_file(part, path / (file if files > 1 else "model.safetensors"), {"format": "pt"})
        index |= dict.fromkeys(part, file)
    if files > 1:
        tree = {"metadata": {}, "weight_map": index}
        (path / "model.safetensors.index.json").write_text(json.dumps(tree))
    (path / "config.json").write_text(
        json.dumps({"model_type": "tiny", "dtype": "bfloat16", **config})
    )
    return path


def loaded(path: Path) -> dict[str, bytes]:
    """The bytes of all tensors of a model directory, by name."""
    found = {}
    for file in sorted(path.glob("*.safetensors")):
        found |= {name: array.tobytes() for name, array in load_file(file).items()}
    return found


def raw(tensors: dict[str, Any]) -> dict[str, bytes]:
    """The bytes of tensors by name."""
    return {name: array.tobytes() for name, array in tensors.items()}


def files_of(out: Path) -> dict[str, bytes]:
    return {each.name: each.read_bytes() for each in out.iterdir() if each.name != MARKER}
