"""The read-only toy as a `Format`."""

from __future__ import annotations

from pathlib import Path

from zerotools.core.checkpoint import Checkpoint
from zerotools.formats.format import Format, ReadOptions


class ReadOnlyFormat(Format):
    name = "read_only"
    title = "a read-only toy checkpoint"
    signs = ("tensors.json",)

    def read(self, path: Path, options: ReadOptions) -> Checkpoint:
        from tests.formats.toy.read_only.read import read

        return read(path, self.name)
