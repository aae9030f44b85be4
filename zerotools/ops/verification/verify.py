"""All checks of a checkpoint together: structure, bytes, meaning."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from zerotools.core.checkpoint import Checkpoint
from zerotools.formats import FORMATS, FormatTable, read_any, require_readable
from zerotools.io.files.sources import Sources, note_source, recording
from zerotools.ops.execution.parts.share import OutputPart
from zerotools.ops.execution.workers import MemoryBudget
from zerotools.ops.verification.against import Against
from zerotools.ops.verification.all_checks import AllChecks
from zerotools.ops.verification.checkpoint_files import CheckpointFiles, files_of
from zerotools.ops.verification.findings import Verification
from zerotools.ops.verification.portion import WHOLE, Portion, portion_of

DEFAULT_MEMORY = 256 * 2**20


@dataclass(frozen=True)
class ToVerify:
    """A checkpoint with its metadata read, its files as they were then, and the portion to
    verify."""

    checkpoint: Checkpoint
    files: CheckpointFiles
    sources: Sources
    table: FormatTable
    portion: Portion = WHOLE

    @property
    def bytes_to_read(self) -> int:
        """Bytes of all files of the portion, each counted once."""
        own = (size for name, size in self.files.names.items() if self.portion.has_file(name))
        return sum(own)


def prepare(
    path: Path,
    *,
    tag: str | None = None,
    layout: Path | None = None,
    section: str | None = None,
    table: FormatTable = FORMATS,
    part: OutputPart | None = None,
) -> ToVerify:
    """Read the metadata of the checkpoint at `path`, of any format. With `part`, only that part of
    it is verified.

    Raises:
        BadRequest: `path` does not exist, or it has no such tag or section.
        BadFile: it is not a checkpoint, or so damaged that its tensors are not known.
        Unsupported: its format is not read.
    """
    with recording() as sources:
        checkpoint = read_any(path, tag=tag, layout=layout, section=section, table=table)
        require_readable(checkpoint)
        files = files_of(checkpoint, table, _asked_directory(path, checkpoint))
        for name in files.names:
            note_source(files.base / name)
    return ToVerify(checkpoint, files, sources, table, portion_of(checkpoint, files, part))


def _asked_directory(path: Path, checkpoint: Checkpoint) -> Path | None:
    """Return the requested directory if one file in it has the tensors: the optimizer and other
    state next to that file are then included."""
    file = checkpoint.origin.path
    is_in_it = path.is_dir() and not file.is_dir() and file.parent.absolute() == path.absolute()
    return file.parent if is_in_it else None  # spelled as the tensors' files are


def verify(
    given: ToVerify,
    *,
    fast: bool = False,
    other: Against | None = None,
    digests: bool = False,
    budget: MemoryBudget | None = None,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> Verification:
    """Make all checks; `on_bytes` gets the number of bytes read. With `fast` no data is read. It is
    compared with the record inside it, if it is an output with one, and with `other`, or else with
    the manifest next to it. With `digests`, the result has a new manifest.

    Raises:
        BadRequest: the manifest is of another model.
    """
    assert not (fast and (other or digests)), "a manifest needs the data"
    assert not (digests and given.portion is not WHOLE), "a manifest is of a whole checkpoint"
    found = AllChecks(
        given.checkpoint,
        given.files,
        given.table,
        (budget or MemoryBudget(DEFAULT_MEMORY)).reading(given.checkpoint.root),
        given.portion,
    )
    found.structure()
    if not fast:
        record = found.record()
        other = other or found.sidecar(record)
        found.bytes(on_bytes, digests=digests or other is not None or record is not None)
        found.copies()
        found.meaning()
        found.compare_with_record(record)
        found.compare(other, on_bytes, digests=digests)
    found.changed(given.sources)
    return Verification(
        given.checkpoint,
        given.files,
        tuple({finding.message: finding for finding in found.findings}.values()),
        found.own_unchecked(),
        found.odd,
        fast,
        0 if fast else given.bytes_to_read,
        found.comparison,
        None if found.findings else found.manifest,
        found.as_written,
        given.portion,
    )
