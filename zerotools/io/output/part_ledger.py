"""The shared state of several runs that write one output together.

They share the staging directory, and these files in it:

    .zerotools-journal      the inputs of the output, and the number of parts: one JSON object
    .zerotools-journal.3    the files, or parts of files, that part 3 has completed

Runs may be on several machines, so only guarantees of a shared file system are used: locks of
regular files (on NFS a lock of a directory holds on one machine only), and bytes that were flushed
before a lock was released. Each run keeps the journal of its part locked. A run that completes a
part locks `.zerotools-journal`, reads the journals of all parts, and finishes the output if all
parts are complete. The journals are removed only after the output was renamed to its final name, so
that a kill in between loses nothing.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadFile, BadRequest
from zerotools.io.files.exclusive_directory import lock_file
from zerotools.io.files.open_files import sync_directory
from zerotools.io.files.regular_files import regular_file
from zerotools.io.output.journal import NAME, Journal, is_of_journals, read_journal, refuse_another
from zerotools.io.output.staging import PROBE

SCHEMA = "zerotools.parts/1"
_LONGEST_HEAD = 2**16


class PartLedger:
    """The ledger of an output that `parts` runs write together in `directory`. The file of the
    ledger may exist already.
    """

    def __init__(self, directory: Path, identity: Mapping[str, str], parts: int) -> None:
        """Open the ledger, or begin it. `identity` describes the inputs of the output, in the form
        that `Journal` takes.

        Raises:
            BadRequest: another output, or the same output in another number of parts, was begun in
                the directory; or the file system has no locks.
        """
        self._directory = directory
        self._identity = dict(identity)
        self._parts = parts
        self._path = directory / NAME
        self._start_over = f"remove {directory} to start over"
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            with self.locked():
                self._begin()
        except BaseException:  # released, and raised again
            self.close()
            raise

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the ledger inside this context, and wait for other runs that have locked it. In the
        meantime another run may have finished the output, and removed the ledger with its
        directory.
        """
        _lock(self._file, fcntl.LOCK_EX, self._path)
        try:
            yield
        finally:
            with suppress(OSError):  # NFS: another part has removed the file
                fcntl.flock(self._file, fcntl.LOCK_UN)

    def _begin(self) -> None:
        line = first_line(self._file)
        if line is None:  # new, or cut off by a kill: no run has continued it
            begun = {"schema": SCHEMA, "identity": self._identity, "parts": self._parts}
            os.ftruncate(self._file, 0)
            os.pwrite(self._file, (json.dumps(begun) + "\n").encode(), 0)
            os.fsync(self._file)
            sync_directory(self._directory)
            return
        head = _head(line)
        if head is None:
            raise _without_parts_error(self._directory)
        _refuse_other_count(self._directory, head["parts"], self._parts)
        refuse_another(self._directory, head["identity"], self._identity, self._start_over)

    def journal(self, part: int) -> Journal:
        """Open the journal of a part for the run that writes the part.

        Raises:
            BadRequest: another run writes the part.
        """

        def lock(file: int) -> None:
            try:
                _lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB, self._directory / _name(part))
            except BlockingIOError:
                raise BadRequest(
                    f"another run is writing part {part} of {self._parts} of {self._directory}; "
                    "wait for it, or stop it"
                ) from None

        return Journal(
            self._directory,
            self._identity,
            resume=True,
            name=_name(part),
            start_over=self._start_over,
            lock=lock,
        )

    def done_of(self, part: int) -> Mapping[str, Any]:
        """Return the entries of the files that a part has completed so far, keyed by name.

        Raises:
            BadRequest: the journal of the part is damaged.
        """
        return read_journal(self._directory / _name(part), self._identity, self._start_over).done

    def close(self) -> None:
        os.close(self._file)


def count_parts(directory: Path) -> int | None:
    """Return the number of parts of the unfinished output in `directory`, or None if it is not
    written in parts.
    """
    head = _read_head(directory)
    return None if head is None else int(head["parts"])


def identity_of_parts(directory: Path) -> dict[str, str] | None:
    """Return the inputs of the unfinished output in `directory`, or None if it is not written in
    parts."""
    head = _read_head(directory)
    return None if head is None else dict(head["identity"])


def _read_head(directory: Path) -> dict[str, Any] | None:
    try:
        with regular_file(directory / NAME, is_source=False) as descriptor:
            line = first_line(descriptor)
    except (OSError, BadFile):
        return None
    return None if line is None else _head(line)


def refuse_without_part(directory: Path) -> None:
    """Raise BadRequest if the unfinished output in `directory` is written in parts. A run without a
    part would remove these parts."""
    parts = count_parts(directory)
    if parts is not None:
        raise BadRequest(
            f"{directory} is being written in {count_text(parts, 'part')}; run the missing ones "
            f"(--part I/{parts}), or remove it to start over"
        )


def check_parts(directory: Path, parts: int) -> None:
    """Raise an error if the staging directory cannot be used by a run that writes one of `parts`
    parts.

    Raises:
        BadRequest: the unfinished output has another number of parts, or a run without parts began
            it. The output would then contain files of that other run.
    """
    begun = count_parts(directory)
    if begun is not None:
        _refuse_other_count(directory, begun, parts)
    elif directory.is_dir() and not _is_new(directory):
        raise _without_parts_error(directory)


def _is_new(directory: Path) -> bool:
    """Return whether the directory is empty, except for the ledger and the probe of a run that
    begins now, or was killed then."""
    left = [path for path in directory.iterdir() if path.name not in (NAME, PROBE)]
    return not left and not (directory / NAME).is_symlink()


def remove_journals(directory: Path) -> None:
    """Remove the ledger and the journals from a finished output."""
    for path in directory.iterdir():
        if is_of_journals(path.name):
            path.unlink(missing_ok=True)


def _without_parts_error(directory: Path) -> BadRequest:
    return BadRequest(
        f"{directory} holds files of a run without --part; finish that run with --resume, or "
        f"remove {directory} to start over"
    )


def _refuse_other_count(directory: Path, begun: int, parts: int) -> None:
    if begun != parts:
        raise BadRequest(
            f"{directory} was begun in {begun} parts, but this run is one of {parts} parts; run "
            f"with --part I/{begun}, or remove {directory} to start over"
        )


def has_started(directory: Path, part: int) -> bool:
    """Return whether a run has begun part number `part` in `directory`."""
    return (directory / _name(part)).exists()


def _name(part: int) -> str:
    return f"{NAME}.{part}"


def first_line(file: int) -> bytes | None:
    """Return the first line of the journal with the open descriptor `file`; None if the line is not
    complete.
    """
    line, end, _ = os.pread(file, _LONGEST_HEAD, 0).partition(b"\n")
    return line if end else None


def _head(data: bytes) -> dict[str, Any] | None:
    try:
        head = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(head, dict) or head.get("schema") != SCHEMA:
        return None
    known = isinstance(head.get("identity"), dict) and isinstance(head.get("parts"), int)
    return head if known else None


def _lock(file: int, how: int, path: Path) -> None:
    try:
        lock_file(file, how, path)
    except BlockingIOError:
        raise
    except OSError as error:
        if error.errno != errno.ESTALE:  # NFS: removed, because the output is complete
            raise BadRequest(f"{path} cannot be locked: {error.strerror}") from None
