"""Copies a rank's output from a pipe into a log of limited size, without blocking the rank."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

TAIL_BYTES = 64 * 1024
_CHUNK = 256 * 1024
_LINE_BYTES = 4096
"""Number of bytes that are kept from the beginning of a line that is longer than the last part
of the output.
"""


def log_line(text: str) -> None:
    """Write `text` as a line of the supervisor's log. On a full disk, the line is lost."""
    with suppress(OSError):
        os.write(1, f"{text}\n".encode(errors="backslashreplace"))


class RankLog:
    """Copies the output of a rank from a pipe into a file: the first `limit` bytes, and at the end
    the last 64 KiB.

    Text in the file never moves, so that a reader can follow the growing file. If the disk is full,
    output is lost, but the rank continues.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self.read_fd, self.write_fd = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(self.read_fd, False)
        flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC
        flags |= os.O_NOFOLLOW | os.O_NONBLOCK  # an earlier attempt may have put anything there
        try:
            self._file = os.open(path, flags, 0o600)
        except OSError:
            os.close(self.read_fd)
            os.close(self.write_fd)
            raise
        self._room = limit
        self._dropped = 0
        self._tail = b""
        self._cut_line = b""
        """The beginning of the first line in the last part of the output, if that line is cut."""
        self.seen = 0
        """Number of bytes of the rank's own output so far, without notes of the supervisor."""

    def spawned(self) -> None:
        """Close the write end of the pipe in this process, after the rank has inherited it."""
        os.close(self.write_fd)

    def drain(self) -> bool:
        """Copy the available output from the pipe. Return False when the output has ended."""
        for _ in range(16):
            try:
                data = os.read(self.read_fd, _CHUNK)
            except BlockingIOError:
                return True
            if not data:
                return False
            self.seen += len(data)
            self._append(data)
        return True

    def add(self, text: str) -> None:
        """Add a note of the supervisor to the log, between the lines of the rank's output."""
        self._append(text.encode(errors="backslashreplace"))

    def _append(self, data: bytes) -> None:
        whole = self._tail + data
        if cut := whole[:-TAIL_BYTES]:
            end = 1 + max(cut.rfind(b"\n"), cut.rfind(b"\r"))
            self._cut_line = (cut[end:] if end else self._cut_line + cut)[:_LINE_BYTES]
        self._tail = whole[-TAIL_BYTES:]
        head = data[: self._room]
        self._room -= len(head)
        if head:
            self._write(head)
        if len(head) < len(data):
            if not self._dropped:
                self._write(b"\n[zerotools: the log is full; its last 64 KiB follow at the end]\n")
            self._dropped += len(data) - len(head)

    def _write(self, data: bytes) -> None:
        try:
            written = os.write(self._file, data)
        except OSError:
            written = 0
        self._dropped += len(data) - written

    def close(self) -> None:
        """Write the last part of the output, if the output was too long for the log, and close
        the file and the pipe.
        """
        if self._dropped:
            lost = max(0, self._dropped - len(self._tail))
            self._write(b"\n[zerotools: %d bytes were dropped here]\n" % lost)
            self._write(self._tail[-self._dropped :])
        os.close(self.read_fd)
        os.close(self._file)

    def tail(self) -> str:
        """Return the last part of the output, at most 64 KiB.

        If this part begins in the middle of a line, the beginning of that line is put before it.
        """
        return (self._cut_line + self._tail).decode("utf-8", "replace")

    def last_lines(self, count: int = 20) -> str:
        """Return the last `count` lines of the output, at most 4 KiB."""
        lines = self._tail[-4096:].decode("utf-8", "replace").splitlines()
        return "\n".join(lines[-count:])
