"""Fetch the files of one source into the staging directory. Each file is flushed, compared with its
digest, and noted in the journal.

While a node sends the files, it also computes their digests, over a second connection. At this time
the node still has the bytes in its memory, so it does not read them from the disk twice. After an
interrupted transfer of a large file, the next run continues behind the last complete block. At the
end a digest must prove that the file is correct. Smaller files are fetched again.
"""

from __future__ import annotations

import hashlib
import os
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

from zerotools.core.errors import BadFile
from zerotools.io.output.journal import Journal
from zerotools.io.ssh.remote_shell import BLOCK, OpenShells
from zerotools.ops.gathering.gather_plan import Fetch
from zerotools.ops.gathering.node_survey import Brought, fetched_entry
from zerotools.ops.gathering.read_node_files import (
    FarContents,
    FarFile,
    Listing,
    Wanted,
    make_digests,
)

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
