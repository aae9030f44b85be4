"""toy as a `Format`."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from tests.formats.toy.file_names import METADATA
from zerotools.core.checkpoint import Checkpoint
from zerotools.core.target import Target
from zerotools.core.training_state import TrainingState
from zerotools.formats.format import Format, ReadOptions, WriteOptions


class ToyFormat(Format):
    name: ClassVar[str] = "toy"
    title: ClassVar[str] = "toy checkpoint"
    signs: ClassVar[tuple[str, ...]] = (METADATA,)
    write_options: ClassVar[frozenset[str]] = frozenset({"world_size"})

    def read(self, path: Path, options: ReadOptions) -> Checkpoint:
        from tests.formats.toy.read import read

        return read(path)

    def training_of(self, checkpoint: Checkpoint) -> TrainingState:
        from tests.formats.toy.training_state import training_of

        return training_of(checkpoint)

    def lay_out(
        self, source: Checkpoint, training: TrainingState, destination: Path, options: WriteOptions
    ) -> Target:
        from tests.formats.toy.lay_out import lay_out

        return lay_out(source, training, destination, options.ranks(source))

    def reshard(self, source: Checkpoint, destination: Path, options: WriteOptions) -> Target:
        return self.lay_out(source, self.training_of(source), destination, options)
