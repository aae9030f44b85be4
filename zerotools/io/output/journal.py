"""The journal of an unfinished output, which lists its complete files.

Each line is a JSON object. The first line records the inputs of the output, and each other line a
complete file. The line of a file is written after the file was flushed to the disk, and is flushed
too. If the last line is incomplete, because a kill cut it off, the line is ignored.

If several runs make one output, each has a separate journal (`part_ledger`).
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadFile, BadRequest
from zerotools.io.files.open_files import sync_directory
from zerotools.io.files.regular_files import read_regular

NAME = ".zerotools-journal"
SCHEMA = "zerotools.journal/1"
_LARGEST = 2**28
START_OVER = "leave --resume out to start over"


class Journal:
    """The open journal of an unfinished output. `done` has the entry of each complete file, by
    name.
    """

    def __init__(
        self,
        directory: Path,
        identity: Mapping[str, str],
        *,
        resume: bool,
        name: str = NAME,
        start_over: str = START_OVER,
        lock: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Begin a journal in `directory`, or with `resume` continue the journal that exists there.

        `identity` describes the inputs of the output, in parts with names that users understand.
        `start_over` is advice for error messages: how to start again from the beginning. `lock` is
        called with the descriptor of the journal before the journal is read.

        Raises:
            BadRequest: the existing journal belongs to another output, or is damaged.
        """
        self._path = directory / name
        self._lock = threading.Lock()
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            lock(self._file)
            found = read_journal(self._path, identity, start_over) if resume else _NOTHING
        except BaseException:  # released, and raised again
            os.close(self._file)
            raise
        self.done = dict(found.done)
        os.ftruncate(self._file, found.length)
        os.lseek(self._file, found.length, os.SEEK_SET)
        if not found.length:
            self._append({"schema": SCHEMA, "identity": dict(identity)})
            sync_directory(directory)

    def add(self, file: str, noted: Any) -> None:
        """Record that the output file `file`, which the caller has flushed, is complete. `noted` is
        a JSON value that is stored with it."""
        with self._lock:
            self._append({"file": file, "noted": noted})
            self.done[file] = noted

    def _append(self, line: Any) -> None:
        data = (json.dumps(line) + "\n").encode()
        if os.write(self._file, data) != len(data):
            raise BadRequest(
                f"{self._path} cannot be written because the disk is full; free some space, and "
                "run the command again"
            )
        os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)

    def remove(self) -> None:
        """Remove the journal, because the output is complete and need not be resumed."""
        self._path.unlink()


@dataclass(frozen=True)
class JournalContents:
    """The contents of a journal: the entries `done` of complete files, and the `length` of its
    complete lines in bytes; 0 if the journal does not exist."""

    done: Mapping[str, Any]
    length: int


_NOTHING = JournalContents({}, 0)


def read_journal(
    path: Path, identity: Mapping[str, str], start_over: str = START_OVER
) -> JournalContents:
    """Read the journal at `path`.

    Raises:
        BadRequest: the journal belongs to another output, or is damaged.
    """

    def unusable(why: str) -> BadRequest:
        return BadRequest(f"{path.parent} cannot be resumed: {why}; {start_over}")

    try:
        data = read_regular(path, _LARGEST, is_source=False)
    except FileNotFoundError:
        return _NOTHING
    except (OSError, BadFile) as error:
        raise unusable(f"its record of finished files cannot be read ({error!s:.200})") from None
    data = data[: data.rfind(b"\n") + 1]
    try:
        lines = [json.loads(line) for line in data.splitlines()]
    except (ValueError, RecursionError):
        raise unusable("its record of finished files is damaged") from None
    if not lines:
        return _NOTHING
    if not isinstance(lines[0], dict) or lines[0].get("schema") != SCHEMA:
        raise unusable("it was started by another version of zerotools")
    before = lines[0].get("identity")
    if not isinstance(before, dict) or not all(map(_is_record, lines[1:])):
        raise unusable("its record of finished files is damaged")
    refuse_another(path.parent, before, identity, start_over)
    return JournalContents({line["file"]: line["noted"] for line in lines[1:]}, len(data))


def refuse_another(
    directory: Path, before: Mapping[str, Any], identity: Mapping[str, str], start_over: str
) -> None:
    """Raise an error if the unfinished output in `directory` has other inputs: `before` is its
    recorded identity, and `identity` is the identity of this run.

    Raises:
        BadRequest: names the difference.
    """
    changed = [part for part, value in identity.items() if before.get(part) != value]
    if changed:
        raise BadRequest(
            f"the run that started {directory} had other {' and '.join(changed)}; {start_over}"
        )


def _is_record(line: Any) -> bool:
    return isinstance(line, dict) and isinstance(line.get("file"), str) and "noted" in line


def is_of_journals(name: str) -> bool:
    """Return whether `name` is the name of a journal, or of the ledger (`part_ledger`)."""
    return name == NAME or name.startswith(f"{NAME}.")
