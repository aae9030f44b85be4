"""The journal of an unfinished output: which of its files are complete.

One JSON object to a line. The first says what the output is made of, and each of the others that a
file is complete: it is written after the file was flushed, and flushed itself. A last line that was
cut short is not there.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadFile, BadRequest
from zerotools.io.files.open_files import sync_directory
from zerotools.io.files.regular import read_regular

NAME = ".zerotools-journal"
SCHEMA = "zerotools.journal/1"
_LARGEST = 2**28


class Journal:
    """`done` has, for each complete file, what was noted about it."""

    def __init__(self, directory: Path, identity: Mapping[str, str], *, resume: bool) -> None:
        """Begin a journal in `directory`, or with `resume` continue the one that exists.

        `identity` says what the output is made of, in parts with names that users understand.

        Raises:
            BadRequest: the journal there is of another output.
        """
        self._path = directory / NAME
        self._identity = dict(identity)
        self._lock = threading.Lock()
        self.done: dict[str, Any] = {}
        end = self._read() if resume else 0
        self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        os.ftruncate(self._file, end)
        os.lseek(self._file, end, os.SEEK_SET)
        if not end:
            self._append({"schema": SCHEMA, "identity": self._identity})
            sync_directory(directory)

    def _read(self) -> int:
        """Take over the existing journal. Returns the length of its complete lines in bytes."""
        try:
            data = read_regular(self._path, _LARGEST, is_source=False)
        except FileNotFoundError:
            return 0
        except (OSError, BadFile) as error:
            raise self._unusable(f"its journal cannot be read ({error!s:.200})") from None
        data = data[: data.rfind(b"\n") + 1]
        try:
            lines = [json.loads(line) for line in data.splitlines()]
        except (ValueError, RecursionError):
            raise self._unusable("its journal is damaged") from None
        if not lines:
            return 0
        if not isinstance(lines[0], dict) or lines[0].get("schema") != SCHEMA:
            raise self._unusable("it was started by another version")
        before = lines[0].get("identity")
        if not isinstance(before, dict) or not all(map(_is_noted, lines[1:])):
            raise self._unusable("its journal is damaged")
        changed = [part for part, value in self._identity.items() if before.get(part) != value]
        if changed:
            raise BadRequest(
                f"{self._path.parent} was started with other {' and '.join(changed)}; leave "
                "--resume out to start over"
            )
        self.done = {line["file"]: line["noted"] for line in lines[1:]}
        return len(data)

    def _unusable(self, why: str) -> BadRequest:
        return BadRequest(
            f"{self._path.parent} cannot be resumed: {why}; leave --resume out to start over"
        )

    def add(self, file: str, noted: Any) -> None:
        """Record that `file`, which was flushed, is complete; `noted` is JSON."""
        with self._lock:
            self._append({"file": file, "noted": noted})
            self.done[file] = noted

    def _append(self, line: Any) -> None:
        data = (json.dumps(line) + "\n").encode()
        if os.write(self._file, data) != len(data):
            raise BadRequest(f"{self._path} cannot be written: the disk is full")
        os.fsync(self._file)

    def close(self) -> None:
        os.close(self._file)

    def remove(self) -> None:
        """The output is complete: nothing is left to resume."""
        self._path.unlink()


def _is_noted(line: Any) -> bool:
    return isinstance(line, dict) and isinstance(line.get("file"), str) and "noted" in line
