"""Write a planned checkpoint (a target) to the disk.

Several threads copy the tensors tile by tile, within a memory budget. The files are written into a
staging directory, a journal records each complete file, and at the end the directory gets its final
name.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Protocol

from zerotools.core.checkpoint import Key
from zerotools.core.errors import BadFile, BadRequest
from zerotools.core.flat_ranges import chunk_locations
from zerotools.core.target import Target
from zerotools.io.files.directory_entries import stays_below_root
from zerotools.io.files.open_files import OpenFiles, sync_directory
from zerotools.io.files.source_stamps import Sources
from zerotools.io.numeric.dtype_casts import NONE_LOST, Cast, LostValues, numpy_cast
from zerotools.io.output.journal import NAME as JOURNAL
from zerotools.io.output.journal import Journal
from zerotools.io.output.output_marker import MARKER, check_replaceable, write_marker
from zerotools.io.output.part_ledger import refuse_without_part
from zerotools.io.output.staging import PROBE, Staging
from zerotools.ops.execution.plan_copies import Copy, RangeCopy
from zerotools.ops.execution.tile_workers import MemoryBudget, TileWorkers
from zerotools.ops.execution.write_files import Writer, create_file, shared_note


@dataclass
class WriteReport:
    """The result of writing an output.

    `losses` has an entry for each tensor that overflowed in its cast, and for each parameter with
    NaN or infinite values. `resumed` are the files that an earlier run had completed. `manifest` is
    the path of the manifest with the output's digests, if the output was read back. `notes` are
    sentences for the user.
    """

    bytes_written: int = 0
    files: int = 0
    losses: dict[Key, LostValues] = field(default_factory=dict)
    resumed: tuple[str, ...] = ()
    bytes_verified: int = 0
    manifest: Path | None = None
    notes: tuple[str, ...] = ()

    def add_losses(self, key: Key, losses: LostValues) -> None:
        if losses != NONE_LOST:
            self.losses[key] = self.losses.get(key, NONE_LOST) + losses

    def add_noted(self, noted: Sequence[Any]) -> None:
        """Add the losses (overflows, NaN and infinite values) in a file's journal entry."""
        for name, role, *counts in noted:
            self.add_losses(Key(name, role), LostValues(*counts))


@dataclass(frozen=True)
class ReadBack:
    """The result of reading an output back and comparing it with the source.

    `nbytes` is the number of equal bytes of tensors. `digests` has the digest of each output file,
    keyed by file name and computed with `algorithm`.
    """

    nbytes: int
    digests: Mapping[str, str] = field(default_factory=dict)
    algorithm: str | None = None


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """The copying of bytes from the source to the output, with the memory and threads of `budget`.

    `on_bytes` is called with the size of each written tile. `sources` are the files that were read
    so far: none of them may change until the output has its name.
    """

    budget: MemoryBudget = field(default_factory=MemoryBudget)
    on_bytes: Callable[[int], None] = lambda _: None
    cast: Cast = numpy_cast
    sources: Sources = field(default_factory=Sources)


@dataclass(frozen=True, kw_only=True)
class Publication:
    """The conditions for giving an output its name.

    Attributes:
        command: the command that the output records.
        overwrite: the output may replace an earlier output of `command`.
        check, read_back, finish: called before the output gets its name. They may raise an error to
            refuse it. `read_back` and `finish` get the directory with all complete files, and
            `finish` may add others.
        replaces: called with an existing destination, in place of the check that `command` wrote
            it.
    """

    command: str = "convert"
    overwrite: bool = False
    check: Callable[[WriteReport], None] = lambda _: None
    read_back: Callable[[Path], ReadBack] | None = None
    replaces: Callable[[Path], None] | None = None
    finish: Callable[[Path], None] = lambda _: None

    @property
    def check_replaced(self) -> Callable[[Path], None] | None:
        """The check of an existing destination; None if it may not be replaced."""
        if self.replaces is None and self.overwrite:
            return partial(check_replaceable, command=self.command)
        return self.replaces


class Fill(Protocol):
    """Writes the bytes of tensors to the files of an output. The files exist at their full size,
    with their other bytes."""

    def __call__(
        self, directory: Path, journal: Journal, needed: Mapping[str, int], report: WriteReport
    ) -> None:
        """Write the tensor bytes of files in `directory`. `needed` maps the names of these files to
        their numbers of tensor bytes. Flush each file and add it to the journal. Add the written
        bytes and losses to the report."""


def execute(
    copies: Iterable[Copy | RangeCopy],
    source_root: Path,
    target: Target,
    *,
    transfer: Transfer | None = None,
    publication: Publication | None = None,
    identity: Mapping[str, str] | None = None,
    resume: bool = False,
) -> WriteReport:
    """Write `target` by carrying out `copies`. The source files are below `source_root`.

    `identity` describes the inputs of the output. With `resume`, the files that an interrupted run
    with the same identity completed are kept. The destination is complete if this function returns,
    and unchanged if it raises an error.

    Raises:
        BadRequest: the destination exists or cannot be written, or the run to resume has another
            identity.
        BadFile: a source file is missing, truncated, unreadable or changed; or the bytes that were
            read back differ from the written ones.
    """
    transfer = transfer or Transfer()
    return write_target(
        target,
        copying(copies, source_root, target, transfer),
        transfer=transfer,
        publication=publication,
        identity=identity,
        resume=resume,
    )


def write_target(
    target: Target,
    fill: Fill,
    *,
    transfer: Transfer,
    publication: Publication | None = None,
    identity: Mapping[str, str] | None = None,
    resume: bool = False,
) -> WriteReport:
    """Write `target` as `execute` does, with `fill` for the bytes of its tensors."""
    publication = publication or Publication()
    command, replaced = publication.command, publication.check_replaced
    refuse_astray(target)
    root = target.checkpoint.root
    with Staging(root, check_replaced=replaced, check_left=_check_alone, keep=resume) as staging:
        directory = staging.directory
        journal = Journal(directory, identity or {}, resume=resume)
        staging.adopt_files()
        try:
            report = _write(target, fill, directory, journal, transfer)
            publication.check(report)
        finally:
            journal.close()
        if target.with_manifest:
            from zerotools.runs.manifest import write_manifest

            write_manifest(directory)
        read_back = publication.read_back
        found = ReadBack(0) if read_back is None else read_back(directory)
        report.bytes_verified = found.nbytes
        write_marker(directory, command, found.digests, found.algorithm)
        journal.remove()
        publication.finish(directory)
        transfer.sources.check()
        staging.commit()
    return report


def refuse_astray(target: Target) -> None:
    """Raise BadFile if a file of the target would lie outside of the target's directory."""
    astray = [name for name in target.files if not stays_below_root(name)]
    if astray:
        raise BadFile(
            f"the output file {astray[0]!r:.80} would be outside of {target.checkpoint.root}"
        )


def _check_left(directory: Path) -> None:
    """Refuse an existing staging directory of another program.

    A staging directory of zerotools has a journal, or the probe of a run that was killed before it
    wrote anything. If it is an output that was about to be replaced, it has a marker.
    """
    if not any((directory / name).is_file() for name in (JOURNAL, MARKER, PROBE)):
        raise BadRequest(
            f"the staging directory {directory} holds files that zerotools did not write; move "
            "them elsewhere, or choose another output"
        )


def _check_alone(directory: Path) -> None:
    refuse_without_part(directory)
    _check_left(directory)


def copying(
    copies: Iterable[Copy | RangeCopy],
    source_root: Path,
    target: Target,
    transfer: Transfer,
    cut: Collection[str] = (),
) -> Fill:
    """Return the function that fills files of `target` by carrying out `copies`. Several runs write
    the files in `cut` together."""

    def fill(
        directory: Path, journal: Journal, needed: Mapping[str, int], report: WriteReport
    ) -> None:
        with (
            OpenFiles(source_root, sources=transfer.sources) as reads,
            OpenFiles(directory, os.O_RDWR) as writes,
            TileWorkers(transfer.budget) as workers,
        ):
            writer = Writer(target, reads, writes, workers, journal, needed, transfer.cast, cut)
            for written, lost in writer.run(copies):
                report.bytes_written += written
                for key, losses in lost:
                    report.add_losses(key, losses)
                transfer.on_bytes(written)
        report.notes += shared_note(writer.bytes_shared)

    return fill


def _write(
    target: Target, fill: Fill, directory: Path, journal: Journal, transfer: Transfer
) -> WriteReport:
    """Write every file of `target` that the journal does not record as complete."""
    complete = _complete(directory, target, journal)
    _clear(directory, {*complete, JOURNAL})
    for file, file_plan in target.files.items():
        if file not in complete:
            create_file(directory / file, file_plan, transfer.sources)
    for folder, _, _ in os.walk(directory):
        sync_directory(Path(folder))
    needed = {**dict.fromkeys(target.files, 0), **_tensor_bytes(target)}
    report = WriteReport(files=len(target.files), resumed=tuple(complete))
    for file, noted in complete.items():
        report.add_noted(noted)
        transfer.on_bytes(needed.pop(file))
    fill(directory, journal, needed, report)
    return report


def _complete(directory: Path, target: Target, journal: Journal) -> dict[str, Any]:
    """Return the journal entries of files that an earlier run completed and that still exist."""
    return {
        file: noted
        for file, noted in journal.done.items()
        if file in target.files
        and are_losses(noted)
        and size_of(directory / file) == target.files[file].size
    }


def are_losses(noted: Any) -> bool:
    """Return whether the journal entry `noted` has the form of the losses of a complete file."""
    return isinstance(noted, list) and all(
        isinstance(each, list)
        and len(each) == 2 + len(fields(LostValues))
        and all(isinstance(part, str) for part in each[:2])
        and all(isinstance(part, int | float) for part in each[2:])
        for each in noted
    )


def size_of(path: Path) -> int | None:
    """Return the size of a regular file in bytes; None if it does not exist."""
    return path.stat().st_size if path.is_file() and not path.is_symlink() else None


def _clear(directory: Path, keep: set[str]) -> None:
    """Remove every file below `directory` except those to keep."""
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder, name)
            if path.relative_to(directory).as_posix() not in keep:
                path.unlink()


def _tensor_bytes(target: Target) -> dict[str, int]:
    """Return the number of tensor bytes in each file of the target, keyed by file name."""
    sizes: dict[str, int] = {}
    for tensor in target.checkpoint.tensors.values():
        for file, numel in chunk_locations(tensor):
            sizes[file] = sizes.get(file, 0) + numel * tensor.dtype.itemsize
    return sizes
