"""Toy checkpoints for tests, and the table of formats with one more line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.formats.toy.file_names import METADATA
from tests.formats.toy.format import ToyFormat
from zerotools.formats import FORMATS, table_of

TABLE = table_of(*FORMATS.values(), ToyFormat())

EXAMPLE: dict[str, Any] = {
    "toy": 1,
    "world_size": 2,
    "tensors": [
        {
            "name": "w",
            "role": "param",
            "dtype": "float32",
            "shape": [3, 4],
            "blocks": [
                {"file": "rank-0.bin", "offset": 0, "start": [0, 0], "shape": [1, 4]},
                {"file": "rank-1.bin", "offset": 8, "start": [1, 0], "shape": [2, 4]},
            ],
        }
    ],
    "aliases": {"tied": "w"},
    "scalars": [{"name": "w", "role": "step", "value": 3.0, "dtype": "float32"}],
    "run": {
        "groups": [
            {"params": ["w"], "options": {"dict": [["lr", 0.1], ["betas", {"tuple": [0.9, 0.95]}]]}}
        ],
        "frozen": [],
        "precision": "float16",
        "optimizer": "AdamW",
        "steps": 3,
        "loss_scaler": {"scale": 64.0, "dynamic": True, "options": {"dict": []}},
        "client": {"dict": [["epoch", 1]]},
        "is_ordered": True,
        "unnamed": {},
        "buffers": [],
        "knows_frozen": True,
    },
}
"""16 bytes of rank 0, and 32 of rank 1 behind 8 that no tensor has."""


def example(root: Path, document: Any = EXAMPLE) -> Path:
    """Written by hand: the bytes of `w` are 0 to 47."""
    root.mkdir()
    (root / METADATA).write_text(json.dumps(document))
    (root / "rank-0.bin").write_bytes(bytes(range(16)))
    (root / "rank-1.bin").write_bytes(bytes(8) + bytes(range(16, 48)))
    return root
