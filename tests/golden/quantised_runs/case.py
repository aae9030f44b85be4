"""What one golden case of quantised weights is, and how it lies on the disk."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

WORDS = {torch.bfloat16: "bf16", torch.float32: "fp32", torch.float16: "fp16"}


@dataclass(frozen=True)
class Case:
    """`tensors` and the config's `settings` are a checkpoint; `truth` is what the library makes of
    it, for each type that it gives. `plain` are the weights that it made `quantised` of."""

    name: str
    tensors: Mapping[str, torch.Tensor]
    settings: Mapping[str, Any]
    truth: Mapping[torch.dtype, Mapping[str, torch.Tensor]]
    plain: Mapping[str, torch.Tensor] = field(default_factory=dict)
    quantised: Mapping[str, torch.Tensor] = field(default_factory=dict)

    def write(self, root: Path) -> None:
        """`NAME/model`, and the files of truth beside it."""
        place = root / self.name
        (place / "model").mkdir(parents=True)
        _save(self.tensors, place / "model" / "model.safetensors")
        config = {"model_type": "llama", "quantization_config": dict(self.settings)}
        text = json.dumps(config, indent=2) + "\n"
        (place / "model" / "config.json").write_text(text)
        for dtype, tensors in self.truth.items():
            _save(tensors, place / f"truth.{WORDS[dtype]}.safetensors")
        if self.plain:
            _save(self.plain, place / "plain.safetensors")
            _save(self.quantised, place / "quantised.safetensors")


def _save(tensors: Mapping[str, torch.Tensor], path: Path) -> None:
    whole = {name: tensor.detach().contiguous() for name, tensor in tensors.items()}
    save_file(whole, path, metadata={"format": "pt"})
