"""Write one part of an output. The run that completes the last missing part gives the output its
name.

    part 1, on any machine:     its bytes -> flushed, noted in its journal
    part 2, ...                 its bytes -> flushed, noted in its journal
    the last to end:            locks the ledger; the journals show that all parts are complete
                                -> checksums of files that several parts wrote, values made from
                                finished files, the marker, the name; then the journals are removed

If the run of a part fails or is killed, its completed files and those of the other parts are kept,
and the next run of the part continues from there. If a run is killed while the output gets its
name, the marker or journals remain in the output. The next run of any part then completes the
output.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadRequest
from zerotools.core.target import Target
from zerotools.io.files.open_files import OpenFiles, sync_directory
from zerotools.io.output.journal import Journal
from zerotools.io.output.output_marker import was_made_of, write_marker
from zerotools.io.output.part_ledger import PartLedger, check_parts, remove_journals
from zerotools.io.output.staging import Staging
from zerotools.ops.execution.divide_output import PartPlan, Share, clip_copies, clip_plan, cut_files
from zerotools.ops.execution.execute import (
    Fill,
    Publication,
    Transfer,
    WriteReport,
    are_losses,
    copying,
    refuse_astray,
    size_of,
)
from zerotools.ops.execution.plan_copies import plan
from zerotools.ops.execution.write_files import (
    ChecksummedRange,
    checksum_bytes,
    crc_of,
    create_file,
    known_parts,
)
from zerotools.runs.manifest import write_manifest


@dataclass
class PartReport(WriteReport):
    """The result of writing one part of an output.

    `missing` are the numbers of parts that are not complete yet. If it is empty, the output has its
    final name, and `losses` counts the lost values of all parts.
    """

    missing: tuple[int, ...] = ()


def execute_part(
    planned: PartPlan,
    source: Checkpoint,
    target: Target,
    identity: Mapping[str, str],
    *,
    transfer: Transfer | None = None,
    publication: Publication | None = None,
) -> PartReport:
    """Write one part of `target`, the one that `planned` describes. The other parameters are those
    of `execute`, but the output is not read back. Nothing is written if the output exists already
    and was made from the same inputs.

    Raises:
        BadRequest: the destination exists or cannot be written, or another run began it with other
            inputs.
        BadFile: a source file is missing, truncated, unreadable or changed.
    """
    transfer = transfer or Transfer()
    wanted = replace(target.checkpoint, tensors=planned.tensors)
    copies = clip_copies(plan(source, wanted), planned.share)
    cut = cut_files(target, planned.shares)
    fill = copying(copies, source.root, target, transfer, cut)
    return write_part(planned, target, fill, identity, transfer=transfer, publication=publication)


def write_part(
    planned: PartPlan,
    target: Target,
    fill: Fill,
    identity: Mapping[str, str],
    *,
    transfer: Transfer,
    publication: Publication | None = None,
) -> PartReport:
    """Write one part of `target` as `execute_part` does, with `fill` for the bytes of its
    tensors."""
    publication = publication or Publication()
    check = publication.check
    refuse_astray(target)
    root, made_of = target.checkpoint.root, digest_of(identity)
    report = PartReport(files=len(planned.share))
    if end_complete(root, made_of):
        return report
    replaced = publication.check_replaced
    left = partial(check_parts, parts=planned.part.of)
    with Staging(root, check_replaced=replaced, check_left=left, shared=True) as staging:
        if end_complete(root, made_of):  # it got its name while the directory was made anew
            staging.discard()
            return report
        ledger = PartLedger(staging.directory, identity, planned.part.of)
        try:
            writing = _Writing(planned, target, staging.directory, made_of, publication.command)
            if not was_made_of(staging.directory, made_of):
                journal = ledger.journal(planned.part.index)
                writing.write(report, journal, fill, transfer)
                check(report)
            transfer.sources.check()
            with ledger.locked():
                if staging.is_there():
                    if writing.finish(report, ledger, check):
                        staging.commit()
                elif not was_made_of(root, made_of):
                    raise gone_error(staging.directory)
        finally:
            ledger.close()
    if not report.missing:
        remove_journals(root)
    return report


def gone_error(directory: Path) -> BadRequest:
    """Return the error for a staging directory that another program moved or removed."""
    return BadRequest(
        f"{directory} was moved or removed while it was written; find the program that did it, and "
        "run all parts again"
    )


def digest_of(identity: Mapping[str, str]) -> str:
    """Return the digest of the inputs of an output, for its marker."""
    return hashlib.sha256(json.dumps(dict(identity), sort_keys=True).encode()).hexdigest()


def end_complete(destination: Path, made_of: str) -> bool:
    """Return whether the output exists and was made from the inputs with the digest `made_of`. Then
    also remove journals that a killed run has left there."""
    if not was_made_of(destination, made_of):
        return False
    remove_journals(destination)
    return True


@dataclass(frozen=True)
class _Writing:
    """Writes one part of `target` in the staging directory `directory`."""

    planned: PartPlan
    target: Target
    directory: Path
    made_of: str
    command: str

    def write(self, report: PartReport, journal: Journal, fill: Fill, transfer: Transfer) -> None:
        """Write the files of this part that are not complete yet."""
        try:
            share, needed = self.planned.share, dict(self.planned.tensor_bytes)
            complete = self._complete(share, journal.done)
            report.resumed = tuple(complete)
            for file, noted in complete.items():
                report.add_noted(noted.losses)
                transfer.on_bytes(needed.pop(file))
            for file in needed:
                own = clip_plan(self.target.files[file], share[file])
                create_file(self.directory / file, own, transfer.sources, shared=True)
            for folder, _, _ in os.walk(self.directory):
                sync_directory(Path(folder))
            fill(self.directory, journal, needed, report)
        finally:
            journal.close()

    def _complete(self, share: Share, done: Mapping[str, Any]) -> dict[str, FileNote]:
        """Return the journal entries of the files in `share` that are complete and still exist,
        keyed by file name."""
        found = {}
        for file, noted in done.items():
            size = self.target.files[file].size if file in share else None
            if size is not None and size_of(self.directory / file) == size:
                known = noted_of(noted, is_cut=share[file] != (0, size))
                if known is not None:
                    found[file] = known
        return found

    def finish(
        self, report: PartReport, ledger: PartLedger, check: Callable[[WriteReport], None]
    ) -> bool:
        """Prepare the output for its final name if all parts are complete, and return whether they
        are."""
        if was_made_of(self.directory, self.made_of):  # a run was killed before it gave the name
            return True
        cuts = self.planned.shares
        done = [self._complete(cut, ledger.done_of(n)) for n, cut in enumerate(cuts, 1)]
        report.missing = tuple(
            n for n, (cut, own) in enumerate(zip(cuts, done, strict=True), 1) if len(own) < len(cut)
        )
        if report.missing:
            return False
        report.losses = {}
        for noted in (each for own in done for each in own.values()):
            report.add_noted(noted.losses)
        check(report)
        for file in self.target.files:  # opened, so that NFS fetches what others wrote
            os.close(os.open(self.directory / file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC))
        write_checksums(self.target, self.directory, done, cut_files(self.target, cuts))
        if self.target.with_manifest:
            write_manifest(self.directory)
        write_marker(self.directory, self.command, made_of=self.made_of)
        return True


@dataclass(frozen=True)
class FileNote:
    """The journal entry of a file that one part has completed.

    `losses` counts the values that overflowed or are not finite, in the JSON form of the journal.
    `checksummed` are the ranges of the file with a known CRC-32.
    """

    losses: Sequence[Any]
    checksummed: Sequence[ChecksummedRange] = ()


def noted_of(noted: Any, *, is_cut: bool) -> FileNote | None:
    """Return the journal entry `noted`; None if it has another form. `is_cut` says that several
    parts write the file."""
    if not is_cut:
        return FileNote(noted) if are_losses(noted) else None
    if not isinstance(noted, dict) or not are_losses(noted.get("losses")):
        return None
    ranges = noted.get("checksummed")
    if not isinstance(ranges, list) or not all(_is_range(each) for each in ranges):
        return None
    return FileNote(noted["losses"], [ChecksummedRange(*each) for each in ranges])


def _is_range(each: Any) -> bool:
    return isinstance(each, list) and len(each) == 3 and all(isinstance(n, int) for n in each)


def write_checksums(
    target: Target, directory: Path, done: Sequence[Mapping[str, FileNote]], cut: Collection[str]
) -> None:
    """Write the checksums of the files in `cut`, which several parts wrote together. `done` has the
    journal entries of all parts."""
    with OpenFiles(directory, os.O_RDWR) as files:
        for file in (name for name in cut if target.files[name].checksums):
            plan = target.files[file]
            parts = [each for own in done if file in own for each in own[file].checksummed]
            parts += known_parts(plan, partial(crc_of, files, file))
            for offset, data in checksum_bytes(plan.checksums, parts):
                files.write_at(file, offset, data)
            files.sync(file)
