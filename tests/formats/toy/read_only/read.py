"""Read a read-only toy checkpoint."""

from __future__ import annotations

from pathlib import Path

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Origin, Tensor
from zerotools.core.dtypes import dtype_named
from zerotools.core.errors import BadFile
from zerotools.io.files.read_json import read_json
from zerotools.io.files.source_stamps import record_source_path
from zerotools.io.huggingface.model_sidecars import find_model_sidecars

DATA = "tensors.bin"


def read(path: Path, format_name: str) -> Checkpoint:
    """Return the checkpoint in the directory `path`; no tensor data is read.

    Raises:
        BadFile: tensors.json is not of the form above.
    """
    listed = read_json(path / "tensors.json", 2**20)
    try:
        tensors = {
            Key(name, "param"): Tensor(
                dtype_named(entry["dtype"]),
                shape := tuple(entry["shape"]),
                [Chunk(Box.whole(shape), DATA, entry["offset"])],
            )
            for name, entry in listed.items()
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise BadFile(
            f"{path / 'tensors.json'} is damaged ({error}); copy or download it again"
        ) from None
    return Checkpoint(
        path,
        tensors,
        Origin(format_name, path),
        files={DATA: record_source_path(path / DATA)},
        model_sidecars=find_model_sidecars(path),
    )
