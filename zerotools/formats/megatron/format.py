"""Megatron's checkpoints as a `Format`: all kinds are read, torch_dist is written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadFile
from zerotools.core.training_state import TrainingState
from zerotools.formats.format import Format, Found, ReadOptions, WriteOptions
from zerotools.formats.megatron.file_names import (
    BRIDGE_TRACKER,
    COMMON,
    CONFIG,
    ITERATION,
    RANK,
    RANK_FILES,
    SLIME,
    TRACKER,
)
from zerotools.io.distcp.dcp_file_names import METADATA
from zerotools.io.files.directory_entries import names_in
from zerotools.io.files.regular_files import read_regular

if TYPE_CHECKING:
    from zerotools.core.target import Dropped, Target


class MegatronFormat(Format):
    """Megatron-LM and Megatron-Core: torch_dist, zarr and legacy rank files."""

    name = "megatron"
    title = "Megatron"
    entry_names = "|".join((*map(re.escape, (COMMON, METADATA, *RANK_FILES)), RANK.pattern))
    names_state = True
    write_options = frozenset({"max_shard_bytes", "expert_parallel"})
    needs_map = True

    def find(self, path: Path, names: set[str], options: ReadOptions) -> Found | None:
        """Return the checkpoint of an iteration, or None. `path` is the directory of the iteration,
        or the directory of one rank inside it.

        A torch_dist directory is also a DCP, but the DCP is not a separate checkpoint.
        """
        return _iteration(path) if _is_megatron(path, names) else None

    def find_file(self, path: Path) -> Found | None:
        return _iteration(path.parent) if path.name in RANK_FILES else None

    def find_in_run(self, path: Path, names: set[str]) -> Found | None:
        """Return the iteration that the tracker file (latest_checkpointed_iteration.txt) names,
        else the newest iteration; None if there is no iteration.
        """
        iterations = sorted(
            (name for name in names if ITERATION.fullmatch(name) and (path / name).is_dir()),
            key=lambda name: (name != "release", len(name), name),
        )
        inside = {name: names_in(path / name) for name in iterations}
        found = [name for name in iterations if _is_megatron(path / name, inside[name])]
        tracker = next((name for name in (TRACKER, BRIDGE_TRACKER) if name in names), None)
        others = any(name.startswith("global_step") for name in names)  # Megatron-DeepSpeed, verl
        others = others or any(SLIME in there for there in inside.values())
        word = ""
        if tracker is not None and not (others and not found):
            word = _tracked(path, tracker)
            if word not in found:
                what = "no finished checkpoint" if word in iterations else "nothing there"
                take = f"take {' or '.join(found[-3:])}" if found else "name another directory"
                raise BadFile(f"{path / tracker} names {word!r}, which is {what}; {take}")
        if not found:
            return None
        taken = word or found[-1]
        why = f"which {tracker} names" if word else "the newest"
        note = (
            (f"took {taken}, {why}, of {len(found)} checkpoints",)
            if len(found) > 1 or not word
            else ()
        )
        return Found(path / taken, note)

    def read(self, path: Path, options: ReadOptions) -> Checkpoint:
        from zerotools.formats.megatron.read import read

        names = names_in(path) if path.is_dir() else set()
        run = None if _is_megatron(path, names) else self.find_in_run(path, names)
        return read(path if run is None else run.path)

    def training_of(self, checkpoint: Checkpoint) -> TrainingState:
        from zerotools.formats.megatron.training_state import training_of

        return training_of(checkpoint)

    def lay_out(
        self, source: Checkpoint, training: TrainingState, destination: Path, options: WriteOptions
    ) -> Target:
        from zerotools.formats.megatron.writing.lay_out import lay_out

        return lay_out(
            source,
            training,
            destination,
            shard_bytes=options.shard_bytes(),
            expert_parallel=options.expert_parallel,
        )

    def how_to_reshard(self, source: Checkpoint, world_size: int) -> str:
        if source.root.joinpath(CONFIG).exists():
            return (
                f"{source.origin.path} is Megatron torch_dist, which Megatron-Core already loads "
                "at any tensor, pipeline and expert parallelism; zerotools convert --to megatron "
                "makes a checkpoint that also loads its optimizer state in this way"
            )
        return (
            f"{source.origin.path} is for the ranks that saved it; zerotools convert --to "
            "megatron makes a torch_dist checkpoint from it, which Megatron-Core loads at any "
            "tensor, pipeline and expert parallelism"
        )

    def never_written(self, source: Checkpoint) -> tuple[Dropped, ...]:
        from zerotools.core.target import Dropped
        from zerotools.formats.megatron.training_state import native_of

        unread = native_of(source).unread
        return (Dropped("optimizer state", unread),) if unread else ()


def _tracked(path: Path, tracker: str) -> str:
    """Return the name of the directory that a tracker file names.

    Raises:
        BadFile: the tracker file is damaged.
    """
    if tracker == BRIDGE_TRACKER:
        from zerotools.formats.megatron.bridge_config import step_in

        return f"iter_{step_in(path, tracker) or 0:07d}"
    text = read_regular(path / tracker, 4096).decode("utf-8", "replace").strip()
    return f"iter_{int(text):07d}" if re.fullmatch(r"\d{1,12}", text) else text[:40]


def _iteration(path: Path) -> Found:
    if not RANK.fullmatch(path.resolve().name):
        return Found(path, is_sole=True)
    above = path.resolve().parent
    return Found(
        above,
        (f"{path} has the files of one rank; pass {above}, which has the files of all ranks",),
        is_sole=True,
    )


def _is_megatron(path: Path, names: set[str]) -> bool:
    """Return whether `path` is the directory of one iteration, or of one rank in it.

    An iteration has the form torch_dist (a DCP next to common.pt), a variant of it, or legacy rank
    files.
    """
    if names >= {COMMON, CONFIG} or names >= {METADATA, COMMON}:
        return True
    if names & {*RANK_FILES}:
        return True
    if any(_has_rank_files(path / name) for name in filter(RANK.fullmatch, names)):
        return True
    in_a_run = ITERATION.fullmatch(path.name) and (path.parent / TRACKER).exists()
    return bool(in_a_run) and METADATA in names and SLIME not in names


def _has_rank_files(path: Path) -> bool:
    return any((path / name).exists() for name in RANK_FILES)
