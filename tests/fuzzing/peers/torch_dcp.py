"""torch's own DCP reader, with a reader of pickles that calls no other classes than its."""

from __future__ import annotations

import io
import math
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import filesystem, metadata
from torch.distributed.checkpoint.api import CheckpointException

from zerotools.core.errors import ZerotoolsError

_LARGEST = 2**18
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


ONLY_OURS = (
    # Ours goes by the name of a class alone, and imports none; `_OwnClasses` asks for the module.
    "UnpicklingError",
    "KeyError: '",  # a layout that torch has not: an item says itself how it lies
)
"""Parts of what the peer says where only ours accepts a directory: why that is right."""

ONLY_THEIRS = (
    ", but the metadata has",  # an item of another type, which torch casts without a word
    "outside of this shape",  # a chunk beyond its tensor, of which torch takes what overlaps
    "is incomplete",  # torch leaves what is in no file as it was: memory that nobody wrote
)
"""Parts of what ours says where only the peer accepts a directory."""


def compare(
    directory: Path, found: Mapping[str, bytes] | None, problem: ZerotoolsError | None
) -> None:
    """`found` has the bytes of the tensors that ours read, by flat key, or `problem` why it read
    none."""
    state: dict[str, Any] | None = None
    why = ""
    try:
        state = _loaded(directory, found)
    except _TooLarge:
        return
    except (Exception, CheckpointException) as error:  # the latter is none of the former
        why = f"{type(error).__name__}: {error}"
    if problem is not None:
        known = not state or any(part in str(problem) for part in ONLY_THEIRS)
        assert known, f"only theirs accepts it: {problem}"
    elif state is None:
        assert any(part in why for part in ONLY_OURS), f"only ours accepts it: {why}"
    elif found is not None:
        for key, ours in found.items():
            tensor: Any = state[key]
            data = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            assert bytes(data) == ours, key


class _TooLarge(Exception):
    """A tensor for which no memory is taken here."""


def _loaded(directory: Path, found: Mapping[str, bytes] | None) -> dict[str, Any]:
    """What torch loads of the tensors in `found`, or of all; an empty one where it has none."""
    about = _Reader(directory).read_metadata().state_dict_metadata
    keys = found if found is not None else [k for k, v in about.items() if hasattr(v, "chunks")]
    state = {}
    for key in keys:
        if math.prod(about[key].size) > _LARGEST:
            raise _TooLarge
        state[key] = torch.zeros(about[key].size, dtype=about[key].properties.dtype)
    if state:
        dcp.load(state, storage_reader=_Reader(directory), no_dist=True)
    return state
