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

from zerotools.core.errors import BadRequest
from zerotools.io.files.open_files import sync_directory

NAME = ".zerotools-journal"
SCHEMA = "zerotools.journal/1"


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
            data = self._path.read_bytes()
        except FileNotFoundError:
            return 0
        data = data[: data.rfind(b"\n") + 1]
        lines = [json.loads(line) for line in data.splitlines()]
        if not lines:
            return 0
        if lines[0].get("schema") != SCHEMA:
            raise BadRequest(
                f"{self._path.parent} was started by another version; leave --resume out to start "
                "over"
            )
        before = lines[0]["identity"]
        changed = [part for part, value in self._identity.items() if before.get(part) != value]
        if changed:
            raise BadRequest(
                f"{self._path.parent} was started with other {' and '.join(changed)}; leave "
                "--resume out to start over"
            )
        self.done = {line["file"]: line["noted"] for line in lines[1:]}
        return len(data)

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
