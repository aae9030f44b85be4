"""Write one part of an output, and give the output its name where it is the last.

    part 1, on any machine:     its share -> flushed, noted in its journal
    part 2, ...                 its share -> flushed, noted in its journal
    whichever ends last:        under the lock of the ledger, all journals say that all is complete
                                -> checksums of files that several wrote, what is made of finished
                                files, the marker, the name

A part that fails or is killed leaves what it has completed, and so do the others: run again, it
goes on from there. A kill while the output gets its name leaves the marker or the journals: any
part that is run again ends it.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.target import Target
from zerotools.io.files.open_files import OpenFiles, sync_directory
from zerotools.io.files.sources import Sources
from zerotools.io.numeric.numpy_dtypes import Cast, numpy_cast
from zerotools.io.output.journal import Journal
from zerotools.io.output.marker import check_replaceable, was_made_of, write_marker
from zerotools.io.output.part_ledger import PartLedger
from zerotools.io.output.staging import Staging
from zerotools.ops.execution.create import create_file
from zerotools.ops.execution.execute import WriteReport, check_left, losses_of, size_of
from zerotools.ops.execution.parts.clip import clip, clip_plan
from zerotools.ops.execution.parts.joining import FileNote, noted_of, write_checksums
from zerotools.ops.execution.parts.share import ALIGNMENT, OutputPart, Share, bytes_in, shares
from zerotools.ops.execution.plan import plan
from zerotools.ops.execution.workers import MemoryBudget, TileWorkers
from zerotools.ops.execution.write import Writer


@dataclass
class PartReport(WriteReport):
    """What one part wrote. `spans` are what it has of each file; `missing` the parts that are not
    complete yet: without any, the output has its name."""

    spans: Share = field(default_factory=dict)
    missing: tuple[int, ...] = ()


def execute_part(
    part: OutputPart,
    source: Checkpoint,
    target: Target,
    identity: Mapping[str, str],
    *,
    budget: MemoryBudget | None = None,
    command: str = "convert",
    overwrite: bool = False,
    on_bytes: Callable[[int], None] = lambda _: None,
    check: Callable[[WriteReport], None] = lambda _: None,
    cast: Cast = numpy_cast,
    sources: Sources | None = None,
    alignment: int = ALIGNMENT,
) -> PartReport:
    """Write `part` of `target`. `alignment` is that of `shares`; other parameters are as of
    `execute`.

    Raises:
        BadRequest: the destination exists or cannot be written, or was begun as something else.
        BadFile: a source file is missing, truncated, unreadable, or another than it was.
    """
    made_of = digest_of(identity)
    root = target.checkpoint.root
    cuts = shares(target, part.of, alignment)
    report = PartReport(spans=cuts[part.index - 1])
    if was_made_of(root, made_of):
        return report
    replaced = partial(check_replaceable, command=command) if overwrite else None
    with Staging(root, check_replaced=replaced, check_left=check_left, shared=True) as staging:
        if was_made_of(root, made_of):  # it got its name while the directory was made anew
            staging.discard()
            return report
        run = _Run(part, source, target, cuts, identity, made_of, command, staging)
        return run.carry_out(
            report, budget or MemoryBudget(), on_bytes, check, cast, sources or Sources()
        )


def digest_of(identity: Mapping[str, str]) -> str:
    """What the marker of an output says of what it is made of."""
    return hashlib.sha256(json.dumps(dict(identity), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class _Run:
    part: OutputPart
    source: Checkpoint
    target: Target
    cuts: list[Share]
    identity: Mapping[str, str]
    made_of: str
    command: str
    staging: Staging

    @property
    def directory(self) -> Path:
        return self.staging.directory

    def carry_out(
        self,
        report: PartReport,
        budget: MemoryBudget,
        on_bytes: Callable[[int], None],
        check: Callable[[WriteReport], None],
        cast: Cast,
        sources: Sources,
    ) -> PartReport:
        ledger = PartLedger(self.directory, self.identity, self.part.of)
        try:
            if not was_made_of(self.directory, self.made_of):
                journal = ledger.journal(self.part.index)
                try:
                    self._write(report, journal, budget, on_bytes, cast, sources)
                    check(report)
                finally:
                    journal.close()
            sources.check()
            with ledger.locked():
                if self.staging.is_there():  # else another part has given the output its name
                    self._end(report, ledger, check)
        finally:
            ledger.close()
        return report

    def _write(
        self,
        report: PartReport,
        journal: Journal,
        budget: MemoryBudget,
        on_bytes: Callable[[int], None],
        cast: Cast,
        sources: Sources,
    ) -> None:
        """Complete what is not complete yet of this part."""
        needed, tensors = bytes_in(self.target, report.spans)
        complete = self._complete(report.spans, journal.done)
        report.files, report.resumed = len(report.spans), tuple(complete)
        for file, noted in complete.items():
            for key, lost in losses_of(noted.losses):
                report.add_losses(key, lost)
            on_bytes(needed.pop(file))
        for file in needed:
            own = clip_plan(self.target.files[file], report.spans[file])
            create_file(self.directory / file, own, sources, shared=True)
        for folder, _, _ in os.walk(self.directory):
            sync_directory(Path(folder))
        wanted = replace(self.target.checkpoint, tensors=tensors)
        with (
            OpenFiles(self.source.root, sources=sources) as reads,
            OpenFiles(self.directory, os.O_RDWR) as writes,
            TileWorkers(budget) as workers,
        ):
            cut = self._cut()
            writer = Writer(self.target, reads, writes, workers, journal, needed, cast, cut)
            for written, lost_here in writer.run(clip(plan(self.source, wanted), report.spans)):
                report.bytes_written += written
                for key, lost in lost_here:
                    report.add_losses(key, lost)
                on_bytes(written)

    def _cut(self) -> frozenset[str]:
        """The files of which several parts have something."""
        plans = self.target.files
        return frozenset(
            file
            for each in self.cuts
            for file, span in each.items()
            if span != (0, plans[file].size)
        )

    def _complete(self, share: Share, done: Mapping[str, Any]) -> dict[str, FileNote]:
        """What the journal of a part notes of the files that are complete, and still there."""
        found = {}
        for file, noted in done.items():
            size = self.target.files[file].size if file in share else None
            if size is not None and size_of(self.directory / file) == size:
                known = noted_of(noted, is_cut=share[file] != (0, size))
                if known is not None:
                    found[file] = known
        return found

    def _end(
        self, report: PartReport, ledger: PartLedger, check: Callable[[WriteReport], None]
    ) -> None:
        """Give the output its name, if all parts are complete."""
        if not was_made_of(self.directory, self.made_of):
            done = [self._complete(cut, ledger.done_of(n)) for n, cut in enumerate(self.cuts, 1)]
            report.missing = tuple(
                n
                for n, (cut, own) in enumerate(zip(self.cuts, done, strict=True), 1)
                if len(own) < len(cut)
            )
            if report.missing:
                return
            self._finish(report, done, check)
        ledger.remove()
        self.staging.commit()

    def _finish(
        self,
        report: PartReport,
        done: list[dict[str, FileNote]],
        check: Callable[[WriteReport], None],
    ) -> None:
        """What no part can do before all are complete."""
        report.losses = {}
        for own in done:
            for noted in own.values():
                for key, lost in losses_of(noted.losses):
                    report.add_losses(key, lost)
        check(report)
        for file in self.target.files:  # opened, so that NFS asks what others have made of it
            os.close(os.open(self.directory / file, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC))
        write_checksums(self.target, self.directory, done, self._cut())
        self.target.finalize(self.directory)
        write_marker(self.directory, self.command, made_of=self.made_of)
