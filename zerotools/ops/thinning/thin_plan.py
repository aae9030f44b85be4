"""Plan the thinning of a checkpoint: the files to remove and to write, and the bytes that become
free. No file is written."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from zerotools import formats
from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadFile, BadRequest
from zerotools.core.target import FilePlan
from zerotools.core.thinning_changes import Keep, Thinning
from zerotools.formats import FORMATS, FormatTable
from zerotools.formats.format import Format, ReadOptions
from zerotools.formats.torch_optimizers import WEIGHT_ROLES
from zerotools.io.files.regular_files import read_regular
from zerotools.io.files.source_stamps import Sources, recording_sources
from zerotools.io.output.files_without_tensors import file_of_bytes
from zerotools.ops.thinning.directory_snapshot import Entries, entries_of
from zerotools.ops.thinning.select_checkpoints import checkpoints_in
from zerotools.ops.thinning.swap_directories import has_leftovers
from zerotools.ops.verification.checkpoint_files import files_of
from zerotools.ops.verification.verify import ToVerify, carry_out_verify
from zerotools.runs.job_checkpoint_file_names import MANIFEST, RECORD
from zerotools.runs.thinning_record import THINNED, ThinnedRecord, read_thinned
from zerotools.runs.training_record import read_record, record_to_json

MASTERS = "masters"
_HINT = "latest"
_LONGEST_HINT = 4096


@dataclass(frozen=True)
class ThinPlan:
    """The plan for thinning the checkpoint `subject`, which is a directory or a file. Names of
    files are relative to `subject`.

    Attributes:
        removed: the files that are deleted.
        rewritten: the files that are written again, and new files. All other files stay unchanged,
            except a job's manifest.
        problems: problems of the checkpoint's structure. A checkpoint with problems is thinned only
            with `force`.
        notes: sentences for the user.
    """

    subject: Path
    source: Checkpoint
    options: ReadOptions
    thinning: Thinning
    entries: Entries
    removed: frozenset[str]
    rewritten: Mapping[str, FilePlan]
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    sources: Sources
    table: FormatTable

    @property
    def form(self) -> Format:
        return formats.format_of(self.source, self.table)

    @property
    def has_work(self) -> bool:
        """True if there is data to remove."""
        return not self.thinning.is_empty

    @property
    def has_manifest(self) -> bool:
        """True if the checkpoint has the manifest of a job, which is then written again."""
        return self.entries.is_file(MANIFEST)

    @property
    def dropped(self) -> dict[str, int]:
        """The size in bytes of the removed tensors, keyed by role. Fp32 masters of weights have a
        role of their own."""
        stays = set(self.thinning.kept.values())
        found: dict[str, int] = {}
        for key, tensor in self.source.tensors.items() if self.has_work else ():
            if key not in stays:
                role = MASTERS if key.role == "param" else key.role
                found[role] = found.get(role, 0) + tensor.nbytes
        return found

    @property
    def bytes_before(self) -> int:
        """The size in bytes of all files of the checkpoint."""
        return sum(self.entries.size_of(name) for name in self.entries.files())

    @property
    def bytes_after(self) -> int:
        """The size in bytes of all files of the result. A job's manifest counts with its old
        size."""
        stays = (n for n in self.entries.files() if n not in self.removed | self.rewritten.keys())
        return sum(map(self.entries.size_of, stays)) + self.bytes_to_write

    @property
    def bytes_to_write(self) -> int:
        """The size in bytes of the files in `rewritten`."""
        return sum(plan.size for plan in self.rewritten.values())

    @property
    def freed(self) -> int:
        """The number of bytes that become free on the disk.

        A removed file with other hard links frees nothing, so the number is negative if the written
        files are larger than those that become free.
        """
        if not self.has_work:
            return 0
        gone = (name for name in self.entries.files() if name in self.removed | {*self.rewritten})
        return sum(map(self.entries.freed_by, gone)) - self.bytes_to_write

    @property
    def shared(self) -> int:
        """The size in bytes of the removed files that stay on the disk because they have other hard
        links."""
        return sum(
            self.entries.size_of(name)
            for name in (*self.removed, *self.rewritten)
            if self.entries.is_file(name) and self.entries.status[name].st_nlink > 1
        )


def prepare_thinning(
    path: Path,
    keep: Keep,
    options: ReadOptions | None = None,
    *,
    table: FormatTable = FORMATS,
    now: float | None = None,
) -> ThinPlan:
    """Read the metadata of the checkpoint at `path`, and plan which data to remove. `keep` selects
    the data that stays. `now` is the recorded time of the thinning, in seconds since 1970.

    Raises:
        BadRequest: `path` does not exist, is a symbolic link, or has several checkpoints or no
            weights.
        BadFile: `path` is not a checkpoint, or is so damaged that its tensors are not known.
        Unsupported: zerotools cannot thin this format, or not this kind of checkpoint.
    """
    options = options or ReadOptions()
    if path.is_symlink():
        entries_of(path)
    with recording_sources() as sources:
        source = formats.read_any(
            path, tag=options.tag, layout=options.layout, section=options.section, table=table
        )
        formats.require_readable(source)
        _refuse_several(path, source, options, table)
        subject = _subject(source)
        entries = entries_of(subject)
        form = formats.format_of(source, table)
        thinning = form.thin(source, keep, replace(options, tag=None))
        if not (thinning.is_empty or any(key.role in WEIGHT_ROLES for key in thinning.kept)):
            raise BadRequest(f"{path} holds no weights, so nothing would stay")
        problems = _problems(source, sources, table)
    entries.note_in(sources)
    removed, rewritten = _below(subject, source, thinning)
    if not thinning.is_empty and subject.is_dir():
        rewritten |= _records(subject, source, thinning, time.time() if now is None else now)
    return ThinPlan(
        subject,
        source,
        options,
        thinning,
        entries,
        removed,
        rewritten,
        problems,
        (*thinning.notes, *_notes(source, subject, entries, removed, rewritten)),
        sources,
        table,
    )


def _refuse_several(
    path: Path, source: Checkpoint, options: ReadOptions, table: FormatTable
) -> None:
    """Raise an error if `path` has several checkpoints and the user did not choose one of them."""
    chosen = source.root if path.is_dir() else source.origin.path
    if options.tag is not None or not path.is_dir() or chosen == path:
        return
    found = checkpoints_in(path, table)
    if len(found) > 1:
        raise BadRequest(
            f"{path} holds {len(found)} checkpoints: name those to thin, such as {found[0].path}, "
            "or select some with --keep-last, --keep-every or --older-than"
        )


def _subject(source: Checkpoint) -> Path:
    """Return the directory or file that holds the whole checkpoint and nothing else."""
    if not source.origin.path.is_dir():
        return source.origin.path.absolute()
    root = source.root.absolute()
    is_jobs = all((root.parent / name).is_file() for name in (RECORD, MANIFEST))
    return root.parent if is_jobs and not (root / RECORD).is_file() else root


def _problems(source: Checkpoint, sources: Sources, table: FormatTable) -> tuple[str, ...]:
    """Return the problems of the checkpoint's structure. Values are not checked."""
    given = ToVerify(source, files_of(source, table), sources, table)
    return tuple(finding.message for finding in carry_out_verify(given, fast=True).findings)


def _below(
    subject: Path, source: Checkpoint, thinning: Thinning
) -> tuple[frozenset[str], dict[str, FilePlan]]:
    """Return the files to remove and those to write, with names relative to `subject`."""
    if not subject.is_dir():
        if thinning.removed:
            raise BadFile(f"{subject} holds only the state of an optimizer; remove it")
        return frozenset(), dict(zip([""], thinning.rewritten.values(), strict=False))
    above = source.root.absolute().relative_to(subject)
    removed = frozenset((above / name).as_posix() for name in thinning.removed)
    return removed, {(above / name).as_posix(): p for name, p in thinning.rewritten.items()}


def _records(
    subject: Path, source: Checkpoint, thinning: Thinning, now: float
) -> dict[str, FilePlan]:
    """Return the files that record the thinning: one in the directory of the tensor files, and one
    in the checkpoint's directory. A job's record is written again, with a mark that no job can
    resume from this checkpoint."""
    lost = source.tensors.keys() - set(thinning.kept.values())
    gone = {MASTERS if key.role == "param" else key.role for key in lost}
    before = read_thinned(source.root)
    gone |= set() if before is None else set(before.dropped)
    record = ThinnedRecord(thinning.keep, tuple(sorted(gone)) or ("optimizer state",), now)
    root = source.root.absolute()
    plans = {
        (place.relative_to(subject) / THINNED).as_posix(): file_of_bytes(record.to_json().encode())
        for place in {root, subject}
    }
    if (subject / RECORD).is_file():
        job = replace(read_record(subject), weights_only=True)
        plans[RECORD] = file_of_bytes(record_to_json(job).encode())
    return plans


def _notes(
    source: Checkpoint,
    subject: Path,
    entries: Entries,
    removed: frozenset[str],
    rewritten: Mapping[str, FilePlan],
) -> list[str]:
    found = [note for note in source.origin.notes if note]
    hint = subject.parent / _HINT
    if (removed or rewritten) and _names(hint, subject.name):
        found.append(
            f"{hint} names this checkpoint: a run that resumes from {subject.parent} would find "
            "no optimizer state"
        )
    links = [
        name
        for name in (*removed, *rewritten)
        if name in entries.status and stat.S_ISLNK(entries.status[name].st_mode)
    ]
    if links:
        found.append(
            f"{links[0]}{' and others are' if links[1:] else ' is'} a symbolic link: its target "
            "is kept"
        )
    return found


def _names(hint: Path, name: str) -> bool:
    try:
        text = read_regular(hint, _LONGEST_HINT, is_source=False)
        return text.decode("utf-8", "replace").strip() == name
    except (OSError, BadFile):
        return False


def leftover_note(plan: ThinPlan) -> str | None:
    """Return a sentence about the files that an interrupted run left next to the checkpoint, or
    None."""
    if not has_leftovers(plan.subject):
        return None
    name = os.fspath(plan.subject.name)
    return f"an earlier run left .{name}.zerotools-thin next to it; the next run removes it"
