"""Copies a rank's output from a pipe into a log of limited size, without blocking the rank."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

TAIL_BYTES = 64 * 1024
_CHUNK = 256 * 1024
_LINE_BYTES = 4096
"""Bytes kept from the beginning of a line that is longer than the tail."""


def say(text: str) -> None:
    """Write one line to the supervisor's log. On a full disk the line is lost."""
    with suppress(OSError):
        os.write(1, f"{text}\n".encode(errors="backslashreplace"))


class RankLog:
    """Copies a pipe into a file: its first `limit` bytes, and in the end the last 64 KiB.

    Offsets in the file never change, so that a reader can follow it. A full disk loses output,
    never the rank.
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
        """The beginning of the first line of the tail."""
        self.seen = 0
        """Bytes of output so far."""

    def spawned(self) -> None:
        """Close this process's write end of the pipe, after the rank has got its copy."""
        os.close(self.write_fd)

    def drain(self) -> bool:
        """Copy the available output. Returns False at the end of the output."""
        for _ in range(16):
            try:
                data = os.read(self.read_fd, _CHUNK)
            except BlockingIOError:
                return True
            if not data:
                return False
            self.seen += len(data)
            self._keep(data)
        return True

    def add(self, text: str) -> None:
        """Add a note of the supervisor itself between the output of the rank."""
        self._keep(text.encode(errors="backslashreplace"))

    def _keep(self, data: bytes) -> None:
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
        """Write the tail of the output that did not fit, and close both ends."""
        if self._dropped:
            lost = max(0, self._dropped - len(self._tail))
            self._write(b"\n[zerotools: %d bytes were dropped here]\n" % lost)
            self._write(self._tail[-self._dropped :])
        os.close(self.read_fd)
        os.close(self._file)

    def tail(self) -> str:
        """Return the last 64 KiB of the output at most.

        If a line is cut at the beginning, it starts with the first bytes of that line.
        """
        return (self._cut_line + self._tail).decode("utf-8", "replace")

    def last_lines(self, count: int = 20) -> str:
        """Return the end of the output, at most 4 KiB."""
        lines = self._tail[-4096:].decode("utf-8", "replace").splitlines()
        return "\n".join(lines[-count:])
