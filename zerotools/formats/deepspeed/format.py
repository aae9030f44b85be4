"""Checkpoints as DeepSpeed saves them, as a `Format`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from zerotools.core.checkpoint import Checkpoint, Problem, Tensor
from zerotools.core.errors import BadRequest
from zerotools.core.training_state import TrainingState
from zerotools.formats.deepspeed.schema.tag_file_names import (
    SIDECAR_NAMES,
    is_deepspeed,
    is_one_file,
)
from zerotools.formats.format import Format, Found, ReadOptions, WriteOptions
from zerotools.runs.job_checkpoint_file_names import RECORD

if TYPE_CHECKING:
    from zerotools.core.target import Target
    from zerotools.core.thinning_changes import Keep, Thinning
    from zerotools.formats.deepspeed.schema.ds_config import ZeroSettings
    from zerotools.runs.training_record import JobRecord

_ZERO_OPTIONS = frozenset({"stage", "sub_group_size", "round_robin", "ds_config"})


class DeepSpeedFormat(Format):
    """ZeRO stages 0 to 3 and BF16_Optimizer: a tag directory, or a save directory with tag
    directories.
    """

    name = "deepspeed"
    title = "DeepSpeed ZeRO"
    signs = ("*_model_states.pt (DeepSpeed)",)
    entry_names = ".*"  # a save directory has tag directories of any name
    is_nested = True
    read_options = frozenset({"tag", "layout"})
    names_state = True
    write_options = frozenset({"world_size", *_ZERO_OPTIONS})
    reshard_options = _ZERO_OPTIONS
    sidecar_names = SIDECAR_NAMES
    may_hold_leftovers = True

    def find(self, path: Path, names: set[str], options: ReadOptions) -> Found | None:
        if not is_deepspeed(path, names):
            return None
        from zerotools.formats.deepspeed.schema.find_tag import is_universal

        return None if is_universal(path, options.tag) else Found(path)

    def find_file(self, path: Path) -> Found | None:
        if is_one_file(path.name):
            raise BadRequest(f"{path} is one file of a DeepSpeed checkpoint; pass its directory")
        return None

    def read(self, path: Path, options: ReadOptions) -> Checkpoint:
        from zerotools.formats.deepspeed.reading.read import read

        return read(path, tag=options.tag, layout=options.layout)

    def training_of(self, checkpoint: Checkpoint) -> TrainingState:
        from zerotools.formats.deepspeed.reading.training_state import training_of

        return training_of(checkpoint)

    def lay_out(
        self, source: Checkpoint, training: TrainingState, destination: Path, options: WriteOptions
    ) -> Target:
        from zerotools.formats.deepspeed.writing.lay_out_converted import lay_out_zero

        return lay_out_zero(
            source,
            training,
            destination,
            world_size=options.ranks(source),
            settings=_settings(options),
        )

    def reshard(self, source: Checkpoint, destination: Path, options: WriteOptions) -> Target:
        from zerotools.formats.deepspeed.writing.lay_out_resharded import as_job, lay_out

        ranks = options.ranks(source)
        target = lay_out(source, destination, world_size=ranks, settings=_settings(options))
        return as_job(source, target, ranks)

    def ranks_divisor(self, source: Checkpoint) -> int:
        """Return the number of model-parallel ranks: `reshard` writes every multiple of it.

        Return 0 (not known) for a checkpoint without ZeRO, for one with experts, and for stage 3
        with several model-parallel ranks.
        """
        from zerotools.formats.deepspeed.partitioning.kept_for_writer import native_of

        mp_shards = native_of(source).mp_shards
        count = len(mp_shards)
        has_experts = any(mp_shard.model.num_experts for mp_shard in mp_shards)
        is_partitioned = all(mp_shard.groups for mp_shard in mp_shards)
        if has_experts or not is_partitioned or (count > 1 and source.origin.stage == 3):
            return 0
        return count

    def thin(self, source: Checkpoint, keep: Keep, options: ReadOptions) -> Thinning:
        from zerotools.core.thinning_changes import Keep
        from zerotools.formats.deepspeed.reading.read import read
        from zerotools.formats.deepspeed.writing.thin import (
            masters_alone,
            may_have_weights_in_model_files,
            weights_alone,
        )

        if keep == Keep.MASTERS:
            return masters_alone(source)
        if may_have_weights_in_model_files(source):
            after = read(source.root, layout=options.layout, weights_alone=True)
            if (found := weights_alone(source, after)) is not None:
                return found
        found = masters_alone(source)
        said = "the masters stay: no other file has all weights"
        return found if found.is_empty else replace(found, notes=(*found.notes, said))

    def is_laid_out(self, source: Checkpoint, options: WriteOptions) -> bool:
        from zerotools.formats.deepspeed.writing.lay_out_resharded import is_already_laid_out

        return is_already_laid_out(source, options.ranks(source), _settings(options))

    def check_weights(self, source: Checkpoint) -> None:
        from zerotools.formats.deepspeed.writing.source_checks import check_weights

        check_weights(source)

    def weight_pairs(self, source: Checkpoint) -> Iterator[tuple[str, Tensor, Tensor]]:
        from zerotools.formats.deepspeed.partitioning.pair_masters_with_weights import weight_pairs

        return weight_pairs(source)

    def files_of_one_save(self, source: Checkpoint) -> Collection[str]:
        from zerotools.formats.deepspeed.reading.check_same_save import files_of_one_save

        return files_of_one_save(source)

    def doubts(self, source: Checkpoint) -> Mapping[str, str]:
        from zerotools.formats.deepspeed.partitioning.kept_for_writer import native_of
        from zerotools.formats.deepspeed.reading.missing_layers_and_experts import doubtful_layers

        native = native_of(source)
        return dict(doubtful_layers(source.root, native.mp_shards, native.tensor_ranks))

    def compare_copies(self, source: Checkpoint) -> None:
        from zerotools.formats.deepspeed.reading.compare_copies import compare_copies

        compare_copies(source)

    def numbered_state(self, source: Checkpoint) -> tuple[Checkpoint, TrainingState] | None:
        from zerotools.formats.deepspeed.reading.read_optimizer_without_zero import numbered_state

        return numbered_state(source)

    def latest_problems(self, source: Checkpoint) -> Iterator[Problem]:
        from zerotools.formats.deepspeed.schema.find_tag import latest_problems

        return latest_problems(source)

    def job_record(self, source: Checkpoint) -> JobRecord | None:
        directory = source.root.parent
        if not (directory / RECORD).is_file():
            return None
        from zerotools.runs.training_record import read_record

        return read_record(directory)

    def run_directory(self, source: Checkpoint) -> Path | None:
        from zerotools.formats.deepspeed.schema.find_tag import run_directory

        return run_directory(source)


def _settings(options: WriteOptions) -> ZeroSettings:
    from zerotools.formats.deepspeed.schema.ds_config import ZeroSettings

    return ZeroSettings(
        options.stage, options.sub_group_size, options.round_robin, options.ds_config
    )
