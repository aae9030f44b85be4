"""torch's own DCP reader, with a reader of pickles that calls no other classes than its."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import filesystem, metadata

_NAMED = {
    ("torch", "Size"): torch.Size,
    ("torch.serialization", "_get_layout"): torch.serialization._get_layout,
    ("collections", "OrderedDict"): dict,
}


class _OwnClasses(pickle._Unpickler):
    """Refuses every other name than those of DCP's metadata and of element types. In Python: the
    one in C takes 8 GiB for a memo entry of number 2 ** 30."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _NAMED:
            return _NAMED[module, name]
        if module == "torch" and isinstance(getattr(torch, name, None), torch.dtype):
            return getattr(torch, name)
        for own in (metadata, filesystem):
            if module == own.__name__ and isinstance(found := own.__dict__.get(name), type):
                return found
        raise pickle.UnpicklingError(f"{module}.{name}")


class _Reader(filesystem.FileSystemReader):
    """FileSystemReader, but for the pickle."""

    def read_metadata(self, *_: Any, **__: Any) -> Any:
        data = (Path(self.path) / ".metadata").read_bytes()
        return _OwnClasses(io.BytesIO(data)).load()


def compare(directory: Path, found: Mapping[str, bytes]) -> None:
    """`found` has the bytes of the tensors that ours read, by flat key."""
    try:
        about = _Reader(directory).read_metadata()
        state = {
            key: torch.zeros(about.state_dict_metadata[key].size, dtype=_dtype(about, key))
            for key in found
        }
        dcp.load(state, storage_reader=_Reader(directory), no_dist=True)
    except Exception:  # of any kind: it checks little, and refuses what it cannot map
        return
    for key, ours in found.items():
        tensor: Any = state[key]
        assert bytes(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()) == ours, key


def _dtype(about: Any, key: str) -> Any:
    return about.state_dict_metadata[key].properties.dtype
