"""Whole tensors out of a job's checkpoint, read with torch in one process."""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata


def load(checkpoint: Path) -> dict[str, torch.Tensor]:
    """Every tensor by its flat key."""
    reader = dcp.FileSystemReader(checkpoint / "dcp")
    entries = reader.read_metadata().state_dict_metadata
    state = {
        name: torch.empty(entry.size, dtype=entry.properties.dtype)
        for name, entry in entries.items()
        if isinstance(entry, TensorStorageMetadata)
    }
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        dcp.load(state, storage_reader=reader, no_dist=True)
    return state


def digest(checkpoint: Path) -> str:
    """One digest over all tensors, their names, types and shapes."""
    whole = hashlib.sha256()
    for name, tensor in sorted(load(checkpoint).items()):
        whole.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        # numpy knows no bfloat16.
        whole.update(tensor.contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return whole.hexdigest()
