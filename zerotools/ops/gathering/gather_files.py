"""Carry out a plan: fetch from several nodes in parallel, check the files, and give the output its
name. The result has a documented JSON form (docs/reference/gather-json.md).
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadFile, BadRequest
from zerotools.io.output.journal import NAME, Journal, is_of_journals
from zerotools.io.output.staging import Staging
from zerotools.io.ssh.remote_shell import BLOCK, OpenShells
from zerotools.ops.conversions.conversion import allocated_bytes, check_space
from zerotools.ops.gathering.check_gathered import StagedCheck
from zerotools.ops.gathering.find_number_gaps import names_alike
from zerotools.ops.gathering.gather_plan import Fetch, GatherPlan
from zerotools.ops.gathering.node_directory import for_each
from zerotools.ops.gathering.node_survey import Brought, fetched_entry, fixed_identity, start_over
from zerotools.ops.gathering.read_node_files import (
    FarContents,
    FarFile,
    Listing,
    Wanted,
    make_digests,
    refuse_changed,
)


@dataclass(frozen=True)
class Gathered:
    """The result of a gather run. `has_name` is False if the output is still in its staging
    directory."""

    plan: GatherPlan
    checked: StagedCheck
    has_name: bool

    def holders_of_alike(self, name: str) -> Mapping[str, list[str]]:
        """Return the names of files that differ from `name` only in numbers, keyed by the source
        that has them."""
        files = self.plan.survey.files
        rows = names_alike(name, files)
        sources = dict.fromkeys(
            [each.source.name for each in self.plan.survey.listings]
            + [each.source for each in self.plan.survey.complete.values()]
        )
        return {each: [row for row in rows if each in files[row].holders] for each in sources}


def check_room(plan: GatherPlan, partial: Path) -> None:
    """Check, before anything is fetched, that the files fit on the disk.

    Raises:
        BadRequest: the file system has too little free space.
    """
    check_space(plan.destination, plan.bytes_of_all - allocated_bytes(partial))


def fetch_and_finish(
    plan: GatherPlan,
    check: Callable[[Path], StagedCheck],
    *,
    shells: OpenShells,
    at_once: int,
    fast: bool = False,
    force: bool = False,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> Gathered:
    """Fetch the files of the plan, run `check` on them, and rename the finished output.

    With `force`, the output is renamed even if the check found problems. After an error, the
    fetched files are kept.

    Raises:
        BadRequest: the output exists, does not fit on the disk, or another run is making it.
        BadFile: a file of a source has changed, or does not have the expected digest.
        HostUnreachable: see `FarShell`; the other sources are still fetched completely.
    """
    found = plan.survey
    with Staging(plan.destination, keep=True) as staging:
        directory = staging.directory
        check_room(plan, directory)
        journal = Journal(
            directory, fixed_identity(found.tag), resume=True, start_over=start_over(directory)
        )
        try:
            if journal.done != found.noted:
                raise _other_run(directory)
            _remove_others(directory, plan)
            there = (each.is_complete_in(directory, n) for n, each in found.complete.items())
            if not all(there):
                raise _other_run(directory)

            def fetch(source: str) -> None:
                fetching = Fetching(
                    plan.listing_of(source),
                    directory,
                    journal,
                    shells,
                    fast=fast,
                    on_bytes=on_bytes,
                )
                fetching.fetch(plan.fetches[source])

            for_each([*plan.fetches], fetch, shells, at_once)
            for_each(
                found.listings, lambda each: _refuse_changed(each, plan, shells), shells, at_once
            )
        finally:
            journal.close()
        checked = check(directory)
        if not checked.is_whole and not force:
            return Gathered(plan, checked, False)
        staging.commit()
        (staging.destination / NAME).unlink(missing_ok=True)
    return Gathered(plan, checked, True)


def _other_run(directory: Path) -> BadRequest:
    return BadRequest(
        f"another run has changed {directory} since this run read it; run the same command again"
    )


def _refuse_changed(listing: Listing, plan: GatherPlan, shells: OpenShells) -> None:
    """Refuse a file that has changed at its source since this or an earlier run fetched it."""
    own = {
        name: file
        for name, file in listing.files.items()
        if name in plan.survey.files and listing.source.name in plan.survey.files[name].holders
    }
    refuse_changed(listing.source, own, shells)


def _remove_others(directory: Path, plan: GatherPlan) -> None:
    """Remove files that an earlier run fetched and that no source has now."""
    for folder, folders, names in os.walk(directory, topdown=False):
        for name in names:
            path = Path(folder, name)
            own = path.relative_to(directory).as_posix()
            is_kept = own in plan.survey.files and not path.is_symlink()
            if not (is_kept or is_of_journals(own)):
                path.unlink()
        for name in folders:
            path = Path(folder, name)
            if path.is_symlink():
                path.unlink()
            elif not any(path.iterdir()):
                path.rmdir()


SCHEMA = "zerotools.gather/1"


def plan_json(plan: GatherPlan) -> dict[str, Any]:
    """Return the entries of the JSON result that are known before anything is fetched."""
    found = plan.survey
    return {
        "schema": SCHEMA,
        "output": str(plan.destination),
        "tag": found.tag,
        "files": len(found.files),
        "bytes": plan.bytes_of_all,
        "sources": [_source(plan, each.source.name) for each in found.listings],
        "copies": plan.copies,
        "complete_before": sorted(found.complete),
        "may_lack": plan.may_lack,
        "doubt": plan.doubt,
    }


def _source(plan: GatherPlan, name: str) -> dict[str, Any]:
    listing = plan.listing_of(name)
    held = [each for each in plan.survey.files.values() if name in each.holders]
    fetches = plan.fetches.get(name, ())
    return {
        "name": name,
        "files": len(held),
        "bytes": sum(each.size for each in held),
        "makes_digests": listing.makes_digests,
        "left_out": list(listing.left_out),
        "fetch": [{"name": each.name, "bytes": each.file.size} for each in fetches],
    }


def result_json(done: Gathered, *, fast: bool) -> dict[str, Any]:
    """Return the entries of the JSON result that are known only after the fetch."""
    checked = done.checked
    return {
        "made": done.has_name,
        "whole": checked.is_whole,
        "fast": fast,
        "findings": checked.findings,
        "missing": [
            {"file": name, "alike": done.holders_of_alike(name)} for name in checked.missing
        ],
        "checkpoints": [
            str(each.checkpoint.root.relative_to(checked.directory))
            for each in checked.verifications
        ],
    }


# Fetch the files of one source into the staging directory. Each file is flushed, compared with its
# digest, and noted in the journal.
#
# While a node sends the files, it also computes their digests, over a second connection. At this
# time the node still has the bytes in its memory, so it does not read them from the disk twice.
# After an interrupted transfer of a large file, the next run continues behind the last complete
# block. At the end a digest must prove that the file is correct. Smaller files are fetched again.

LARGE = 8 * BLOCK
"""Files of at least this size in bytes are noted in the journal when their transfer begins."""
_TIME = re.compile(r"(\d{1,12})(?:\.(\d{1,9})\d*)?")
_SHORT = 12
Digests = Callable[[str], str | None]


class Fetching:
    """Fetches files of `listing` into `directory`. With `fast`, digests are compared only for files
    that several sources have."""

    def __init__(
        self,
        listing: Listing,
        directory: Path,
        journal: Journal,
        shells: OpenShells,
        *,
        fast: bool,
        on_bytes: Callable[[int], None],
    ) -> None:
        self._listing = listing
        self._source = listing.source
        self._directory = directory
        self._journal = journal
        self._shells = shells
        self._compares = listing.makes_digests and not fast
        self._on_bytes = on_bytes

    def fetch(self, fetches: Sequence[Fetch]) -> None:
        """Fetch all files in `fetches`.

        Raises:
            BadFile: a file changed since it was listed, cannot be read on its node, or arrived with
                other contents.
            HostUnreachable: see `FarShell`.
        """
        wanted = [Wanted(each.name, each.file, self._blocks(each)) for each in fetches]
        with (
            self._digests(fetches) as digest_of,
            FarContents(self._source, wanted, self._shells) as sent,
        ):
            for each in wanted:
                found = self._receive(each, sent)
                self._compare(each, found, digest_of(each.name))
                self._note(each, found)

    def _blocks(self, each: Fetch) -> int:
        """Return the number of complete blocks of a file that an earlier run received."""
        before = fetched_entry(self._journal.done.get(each.name))
        path = self._directory / each.name
        if before is None or before.file != each.file or before.source != self._source.name:
            return 0
        if not (self._compares or each.digest) or before.sha256 is not None or path.is_symlink():
            return 0
        return min(path.stat().st_size, each.file.size) // BLOCK if path.is_file() else 0

    def _receive(self, wanted: Wanted, sent: FarContents) -> str:
        """Receive a file, write it, and return the digest of the whole file."""
        path = self._directory / wanted.name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not wanted.blocks and wanted.file.size >= LARGE:
            self._note(wanted, None)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        digest = hashlib.sha256()
        with os.fdopen(os.open(path, flags, 0o666), "r+b", buffering=0) as file:
            for _ in range(wanted.blocks):
                digest.update(file.read(BLOCK))
            file.truncate(wanted.skipped)
            self._on_bytes(wanted.skipped)

            def take(part: bytes) -> None:
                view = memoryview(part)
                while view:
                    view = view[file.write(view) :]
                digest.update(part)
                self._on_bytes(len(part))

            sent.next(take)
            os.fsync(file.fileno())
        _set_time(path, wanted.file)
        return digest.hexdigest()

    def _compare(self, wanted: Wanted, found: str, there: str | None) -> None:
        if there is None or found == there:
            return
        (self._directory / wanted.name).unlink()
        raise BadFile(
            f"{self._source.name}: {wanted.name} has SHA-256 {there[:_SHORT]}... on its node, but "
            f"{found[:_SHORT]}... after the transfer: it changed meanwhile, or a disk or the "
            "network returns wrong bytes; run the same command again"
        )

    def _note(self, wanted: Wanted, digest: str | None) -> None:
        file = wanted.file
        noted = Brought(self._source.name, file.size, file.time, digest)
        self._journal.add(wanted.name, noted.to_json())

    @contextmanager
    def _digests(self, fetches: Sequence[Fetch]) -> Iterator[Digests]:
        """Return a context with a function that waits for the digest of a file at its source. The
        function returns None if the digest is not computed."""
        known = {each.name: each.digest for each in fetches}
        names = [each.name for each in fetches if each.digest is None]
        if not self._compares or not names:
            yield lambda name: known[name]
            return
        futures: dict[str, Future[str]] = {name: Future() for name in names}
        own = OpenShells(self._shells)

        def make() -> None:
            try:
                make_digests(self._listing, names, own, lambda n, d: futures[n].set_result(d))
            except BaseException as error:  # raised again by who waits
                for future in futures.values():
                    if not future.done():
                        future.set_exception(error)

        thread = threading.Thread(target=make, name=f"digests of {self._source.name}")
        thread.start()
        try:
            yield lambda name: futures[name].result() if name in futures else known[name]
        finally:
            own.end_all()
            thread.join()
            self._shells.remove(own)


def _set_time(path: Path, file: FarFile) -> None:
    """Give the fetched file the modification time at its source, if it is known."""
    if (match := _TIME.fullmatch(file.time)) is not None:
        time = int(match[1]) * 10**9 + int((match[2] or "0").ljust(9, "0"))
        os.utime(path, ns=(time, time))
