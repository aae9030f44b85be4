"""Bytes of a log onto the screen, into a pipe, or as JSON."""

from __future__ import annotations

import re
import sys
from typing import BinaryIO, Protocol, TextIO

from zerotools.cli.output import render

LONGEST_LINE = 1 << 16
_END = re.compile(rb"\r\n|\n|\r")


class LogSink(Protocol):
    """The destination of ranks' output bytes."""

    def feed(self, attempt: int, rank: int, data: bytes) -> None:
        """Take the next bytes of a rank."""
        ...

    def finish(self) -> None:
        """Write the bytes that are still held: no more come."""
        ...


class RawSink:
    """The same bytes that the rank wrote: for pipes and files."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream

    def feed(self, attempt: int, rank: int, data: bytes) -> None:
        """Write at once."""
        self._stream.write(data)
        self._stream.flush()

    def finish(self) -> None:
        """Do nothing: no bytes are held."""


class LineSink:
    """Whole lines; escape sequences shown, not obeyed. A progress bar's redraws become lines."""

    def __init__(self, stream: TextIO, *, prefixed: bool) -> None:
        self._stream = stream
        self._prefixed = prefixed
        self._held: dict[tuple[int, int], bytes] = {}

    def feed(self, attempt: int, rank: int, data: bytes) -> None:
        """Write the lines that are complete."""
        *whole, rest = _END.split(self._held.pop((attempt, rank), b"") + data)
        if len(rest) > LONGEST_LINE:
            whole, rest = [*whole, rest], b""
        for line in whole:
            self.line(attempt, rank, line)
        if rest:
            self._held[attempt, rank] = rest
        self._stream.flush()

    def finish(self) -> None:
        """Write lines that were never ended."""
        for (attempt, rank), line in sorted(self._held.items()):
            self.line(attempt, rank, line)
        self._held.clear()
        self._stream.flush()

    def line(self, attempt: int, rank: int, line: bytes) -> None:
        """Write one line."""
        text = line.decode("utf-8", "replace").expandtabs()
        prefix = f"[rank {rank}] " if self._prefixed else ""
        self._stream.write(f"{prefix}{render.clean(text)}\n")


class JsonSink(LineSink):
    """One JSON object for each line."""

    def __init__(self) -> None:
        super().__init__(sys.stdout, prefixed=False)

    def line(self, attempt: int, rank: int, line: bytes) -> None:
        """Write one line as an object."""
        text = line.decode("utf-8", "replace")
        render.print_json_line({"attempt": attempt, "rank": rank, "line": text})


def sink(*, as_json: bool, prefixed: bool) -> LogSink:
    """Return the right one for stdout."""
    if as_json:
        return JsonSink()
    if prefixed or sys.stdout.isatty():
        return LineSink(sys.stdout, prefixed=prefixed)
    return RawSink(sys.stdout.buffer)
