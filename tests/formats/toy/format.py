"""toy: a format that no program has, complete and small, as the section "Add a format" of
CONTRIBUTING.md says how to write one.

A checkpoint is a directory. `rank-N.bin` has the bytes of rank N: its rows of every tensor, one
block after another. `toy.json` says the rest::

    {"toy": 1, "world_size": 2,
     "tensors": [{"name": "w", "role": "param", "dtype": "float32", "shape": [3, 4], "blocks": [
         {"file": "rank-0.bin", "offset": 0, "start": [0, 0], "shape": [1, 4]},
         {"file": "rank-1.bin", "offset": 0, "start": [1, 0], "shape": [2, 4]}]}],
     "aliases": {"tied": "w"},
     "scalars": [{"name": "w", "role": "step", "value": 3.0, "dtype": "float32"}],
     "run": {"groups": [{"params": ["w"], "options": ...}], "precision": "bfloat16", ...}}

`training_state` has the members of `run`, `plain_values` how values are written that JSON lacks.
It would be `zerotools/formats/toy/` if it were shipped.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from zerotools.core.checkpoint import Checkpoint, Target
from zerotools.core.training import TrainingState
from zerotools.formats.format import Format, Found, ReadOptions, WriteOptions

METADATA = "toy.json"


class ToyFormat(Format):
    name: ClassVar[str] = "toy"
    title: ClassVar[str] = "toy checkpoint"
    signs: ClassVar[tuple[str, ...]] = (METADATA,)
    is_written: ClassVar[bool] = True
    write_options: ClassVar[frozenset[str]] = frozenset({"world_size"})
    reshards: ClassVar[bool] = True

    def find(self, path: Path, names: set[str], options: ReadOptions) -> Found | None:
        return Found(path) if METADATA in names else None

    def read(self, path: Path, options: ReadOptions) -> Checkpoint:
        from tests.formats.toy.read import read

        return read(path)

    def training_of(self, checkpoint: Checkpoint) -> TrainingState:
        from tests.formats.toy.training_state import training_of

        return training_of(checkpoint)

    def lay_out(
        self,
        source: Checkpoint,
        training: TrainingState,
        destination: Path,
        options: WriteOptions,
    ) -> Target:
        from tests.formats.toy.lay_out import lay_out

        return lay_out(source, training, destination, options.ranks(source))

    def reshard(self, source: Checkpoint, destination: Path, options: WriteOptions) -> Target:
        return self.lay_out(source, self.training_of(source), destination, options)
