"""Output files that no tensor is copied into: known bytes, or those of another file."""

from __future__ import annotations

import os
from pathlib import Path

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.target import CarriedBytes, FilePlan, LiteralBytes
from zerotools.io.files.regular import regular_file


def literal(data: bytes) -> FilePlan:
    """A file whose every byte is known."""
    return FilePlan(len(data), [LiteralBytes(0, data)])


def carried_file(path: Path) -> FilePlan:
    """A file as it is.

    Raises:
        BadFile: it is not a regular file.
    """
    with regular_file(path) as descriptor:
        size = os.fstat(descriptor).st_size
    return FilePlan(size, carried=[CarriedBytes(0, path, 0, size)])


def sidecar_files(source: Checkpoint) -> dict[str, FilePlan]:
    """config.json, the tokenizer and the like, as they are."""
    return {name: carried_file(path) for name, path in source.model_sidecars.items()}
