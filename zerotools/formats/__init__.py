"""Floor 2: one reader and, where it is written, one writer per format; `detect` finds which.

A format is imported only when a file of it is there. Formats do not import each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

from zerotools.core.checkpoint import Checkpoint
from zerotools.formats.detect import Detected, detect


@dataclass(frozen=True, slots=True)
class Format:
    """A format by its module, which has `read(path) -> Checkpoint`."""

    name: str
    title: str
    module: str

    def reader(self) -> Callable[[Path], Checkpoint]:
        """The format's `read`, imported now."""
        read: Callable[[Path], Checkpoint] = import_module(self.module).read
        return read


FORMATS: Mapping[str, Format] = {
    "dcp": Format("dcp", "torch DCP", "zerotools.formats.dcp"),
    "safetensors": Format("safetensors", "safetensors", "zerotools.formats.safetensors"),
}


def read(path: Path) -> Checkpoint:
    """The checkpoint at `path`, in whichever format it is.

    Raises:
        BadRequest: there is nothing at `path`.
        BadFile: it is no checkpoint, or a damaged or unfinished one.
        Unsupported: it is in a format that is not read.
    """
    found = detect(path)
    checkpoint = FORMATS[found.format].reader()(found.path)
    if not found.notes:
        return checkpoint
    origin = replace(checkpoint.origin, notes=(*found.notes, *checkpoint.origin.notes))
    return replace(checkpoint, origin=origin)


__all__ = ["FORMATS", "Detected", "Format", "detect", "read"]
