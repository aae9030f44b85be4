"""torch DCP as a `Format`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadRequest
from zerotools.core.training_state import TrainingState
from zerotools.formats.dcp.accelerate_directory_names import FSDP_MODEL, fsdp_models
from zerotools.formats.format import (
    Format,
    Found,
    ReadOptions,
    UnfinishedCheckpoint,
    WriteOptions,
)
from zerotools.io.distcp.dcp_file_names import DATA_SUFFIX, METADATA, RANK_METADATA
from zerotools.io.files.directory_entries import names_in
from zerotools.runs.job_checkpoint_file_names import DCP, RECORD

if TYPE_CHECKING:
    from zerotools.core.target import Dropped, Target
    from zerotools.core.thinning_changes import Keep, Thinning
    from zerotools.runs.training_record import JobRecord


class DcpFormat(Format):
    """torch.distributed.checkpoint (DCP), the format that FSDP and a zerotools job save."""

    name = "dcp"
    title = "torch DCP"
    signs = (f"{METADATA} (torch DCP)",)
    entry_names = rf"{re.escape(METADATA)}|{RANK_METADATA.pattern}|{DCP}|{FSDP_MODEL.pattern}"
    read_options = frozenset({"section"})
    names_state = True
    write_options = frozenset({"world_size", "style"})
    says_weights = True
    sidecar_names = frozenset({METADATA})

    def find(self, path: Path, names: set[str], options: ReadOptions) -> Found | None:
        if not _is_dcp(path, names):
            return None
        first, *others = fsdp_models(names) or [""]
        if not others:
            return Found(path)
        said = f"took {first}; {path} also holds {', '.join(others)}: to read that, pass its path"
        return Found(path, (said,))

    def find_file(self, path: Path) -> Found | None:
        if path.name == METADATA or path.suffix == DATA_SUFFIX:
            raise BadRequest(f"{path} is one file of a torch DCP checkpoint; pass its directory")
        return None

    def refuse_unfinished(self, path: Path, names: set[str]) -> None:
        below = (path / name for name in (DCP, *fsdp_models(names)))
        inside = {name for each in below if each.is_dir() for name in names_in(each)}
        if any(name.endswith(DATA_SUFFIX) for name in names | inside):
            raise UnfinishedCheckpoint(
                f"{path} has {DATA_SUFFIX} files but no {METADATA}, which torch writes last: the "
                "save was not finished; take an older checkpoint"
            )

    def read(self, path: Path, options: ReadOptions) -> Checkpoint:
        from zerotools.formats.dcp.read import read

        return read(path, section=options.section)

    def training_of(self, checkpoint: Checkpoint) -> TrainingState:
        from zerotools.formats.dcp.training_state import training_of

        return training_of(checkpoint)

    def lay_out(
        self, source: Checkpoint, training: TrainingState, destination: Path, options: WriteOptions
    ) -> Target:
        from zerotools.formats.dcp.lay_out_converted import lay_out_dcp

        return lay_out_dcp(
            source,
            training,
            destination,
            world_size=options.ranks(source),
            style=options.style or "torch",
        )

    def reshard(self, source: Checkpoint, destination: Path, options: WriteOptions) -> Target:
        from zerotools.formats.dcp.lay_out_resharded import lay_out

        return lay_out(source, destination, world_size=options.ranks(source))

    def thin(self, source: Checkpoint, keep: Keep, options: ReadOptions) -> Thinning:
        from zerotools.formats.dcp.thin import thin

        return thin(source, section=options.section)

    def job_record(self, source: Checkpoint) -> JobRecord | None:
        from zerotools.formats.dcp.kept_for_writer import native_of

        return native_of(source).job

    def run_directory(self, source: Checkpoint) -> Path | None:
        """Return the directory that also holds other files of the run; None for a zerotools job,
        because all files in the directory then belong to the checkpoint.
        """
        return None if self.job_record(source) is not None else super().run_directory(source)

    def never_written(self, source: Checkpoint) -> tuple[Dropped, ...]:
        from zerotools.formats.dcp.several_directories import lost_attributes

        return lost_attributes(source)


def _is_dcp(path: Path, names: set[str]) -> bool:
    if METADATA in names or any(map(RANK_METADATA.fullmatch, names)):
        return True
    if DCP in names and (RECORD in names or (path / DCP / METADATA).exists()):
        return True
    return any((path / name / METADATA).exists() for name in fsdp_models(names)[:1])
