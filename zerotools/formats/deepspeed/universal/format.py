"""DeepSpeed's universal checkpoints as a `Format`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from zerotools.core.checkpoint import Checkpoint, Problem, Tensor
from zerotools.core.training_state import TrainingState
from zerotools.formats.deepspeed.schema.tag_file_names import SIDECAR_NAMES, is_deepspeed
from zerotools.formats.format import Format, Found, ReadOptions, WriteOptions

if TYPE_CHECKING:
    from zerotools.core.target import Target
    from zerotools.core.thinning_changes import Keep, Thinning


class UniversalFormat(Format):
    """Universal checkpoints, with one directory for each parameter. DeepSpeed's `ds_to_universal`
    writes them, and any number of ranks can load them.
    """

    name = "universal"
    title = "a DeepSpeed universal checkpoint"
    entry_names = ".*"  # a save directory has tag directories of any name
    is_nested = True
    # `layout` is accepted but has no effect, because the checkpoint has no tensor-parallel shards.
    read_options = frozenset({"tag", "layout"})
    names_state = True
    write_options = frozenset({"stage"})
    sidecar_names = SIDECAR_NAMES

    def find(self, path: Path, names: set[str], options: ReadOptions) -> Found | None:
        if not is_deepspeed(path, names):
            return None
        from zerotools.formats.deepspeed.schema.find_tag import is_universal

        return Found(path) if is_universal(path, options.tag) else None

    def read(self, path: Path, options: ReadOptions) -> Checkpoint:
        from zerotools.formats.deepspeed.universal.read import read

        return read(path, tag=options.tag)

    def training_of(self, checkpoint: Checkpoint) -> TrainingState:
        from zerotools.formats.deepspeed.universal.training_state import universal_training

        return universal_training(checkpoint)

    def lay_out(
        self, source: Checkpoint, training: TrainingState, destination: Path, options: WriteOptions
    ) -> Target:
        from zerotools.formats.deepspeed.universal.lay_out import lay_out_universal

        return lay_out_universal(source, training, destination, stage=options.stage)

    def thin(self, source: Checkpoint, keep: Keep, options: ReadOptions) -> Thinning:
        from zerotools.formats.deepspeed.universal.thin import thin_universal

        return thin_universal(source, keep)

    def how_to_reshard(self, source: Checkpoint, world_size: int) -> str:
        from zerotools.formats.deepspeed.partitioning.kept_for_writer import refuse_stacked_experts

        refuse_stacked_experts(source)
        return (
            f"{source.origin.path} is a universal checkpoint, which was not saved for a "
            f"particular world size; zerotools convert --to deepspeed --world-size {world_size} "
            "makes a native checkpoint from it"
        )

    def check_weights(self, source: Checkpoint) -> None:
        from zerotools.formats.deepspeed.universal.read import check_weights

        check_weights(source)

    def latest_problems(self, source: Checkpoint) -> Iterator[Problem]:
        from zerotools.formats.deepspeed.schema.find_tag import latest_problems

        return latest_problems(source)

    def weight_pairs(self, source: Checkpoint) -> Iterator[tuple[str, Tensor, Tensor]]:
        from zerotools.formats.deepspeed.universal.read import weight_pairs

        return weight_pairs(source)

    def run_directory(self, source: Checkpoint) -> Path | None:
        from zerotools.formats.deepspeed.schema.find_tag import run_directory

        return run_directory(source)
