"""Model directories of random numbers for a shipped map, without torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from zerotools.maps.model_layout import layout_of_model
from zerotools.maps.shipped_maps import map_of_model

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "hidden_size": 16,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "vocab_size": 20,
    "tie_word_embeddings": False,
}


def written(folder: Path, layout: str = "hf", **config: Any) -> dict[str, np.ndarray]:
    """The tensors of a model in `layout` (layer by layer), which are written with config.json."""
    own = {**LLAMA, **config}
    shapes = layout_of_model(map_of_model(own), layout, own).tensors
    random = np.random.default_rng(7)
    arrays = {name: random.random(shape, dtype="f4") for name, shape in shapes.items()}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(own))
    save_file(arrays, folder / "model.safetensors")
    return arrays
