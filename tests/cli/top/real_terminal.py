"""A program in a terminal of its own: a pseudo-terminal, whose other end is pyte's screen."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import sys
import termios
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyte

from harness.started import Started
from tests.daemon.waiting import wait_for

ROOT = Path(__file__).parents[3]
TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)
"""Makes its standard input the terminal that it is controlled by, and becomes the program."""
_UNKNOWN = re.compile(rb"\x1b\[[<>=][0-9;]*[a-zA-Z]|\x1b\[\?[0-9;]*\$[a-z]|\x1b\[\?u")
"""What pyte would show: the keyboard's protocol, and questions about modes."""
_OPEN = re.compile(rb"\x1b(?:\[[0-9;:?<>=$]*|\][^\x07\x1b]*)?\Z")
_COLOURS = re.compile(rb"\x1b\[([0-9;]*)m")


class RealTerminal:
    """Starts `command` and reads what it writes. `answers` are what the terminal says when it is
    asked something."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        size: tuple[int, int] = (80, 24),
        answers: Mapping[bytes, bytes] | None = None,
    ) -> None:
        self.written = b""
        self.is_restored = False
        self._screen = pyte.Screen(*size)
        self._stream = pyte.ByteStream(self._screen)
        self._lock = threading.Lock()
        self._answers = {b"\x1b[c": b"\x1b[?62;22c", **(answers or {})}
        self._held = b""
        self._ours, theirs = pty.openpty()
        self._theirs = theirs
        self._resize(*size)
        self.modes = termios.tcgetattr(theirs)
        # What the tests themselves run in says nothing of this terminal.
        without = ("COLUMNS", "LINES", "NO_COLOR", "COLORTERM", "COLORFGBG", "TERM_PROGRAM")
        base = {name: value for name, value in os.environ.items() if name not in without}
        path = f"{ROOT}:{ROOT / 'daemon'}"
        self.process = Started(
            [sys.executable, "-c", TERMINAL, sys.executable, *command],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**base, "TERM": "xterm-256color", "PYTHONPATH": path, **environment},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._ours, 1 << 16)
            except OSError:
                return
            with self._lock:
                self.written += data
                data, self._held = self._held + data, b""
                # In the order in which it was asked, as terminals do.
                for question in sorted(self._answers, key=data.find):
                    if question in data:
                        os.write(self._ours, self._answers[question])
                if found := _OPEN.search(data):
                    data, self._held = data[: found.start()], data[found.start() :]
                self._stream.feed(_UNKNOWN.sub(b"", data))

    @property
    def lines(self) -> list[str]:
        """What is on the screen."""
        with self._lock:
            return [line.rstrip() for line in self._screen.display]

    @property
    def text(self) -> str:
        """The same as one text."""
        return "\n".join(self.lines)

    @property
    def is_cursor_hidden(self) -> bool:
        """Whether the program hides the cursor."""
        with self._lock:
            return bool(self._screen.cursor.hidden)

    @property
    def colours(self) -> set[int]:
        """The numbers of all colours that were written, as SGR has them; 38 and 48 are those of a
        palette or of RGB. The terminal's own (39, 49) are none."""
        found: set[int] = set()
        for numbers in _COLOURS.findall(self.written):
            parts = [int(part or 0) for part in numbers.split(b";")]
            if 38 in parts or 48 in parts:
                found.add(38)
                continue
            found |= {part for part in parts if 30 <= part <= 37 or 40 <= part <= 47 or part >= 90}
        return found

    def wait_for(self, text: str) -> None:
        """Until it is on the screen."""
        self.wait_until(lambda: text in self.text, f"{text!r} on the screen")

    def wait_until(self, condition: Callable[[], Any], what: str) -> None:
        """Until it is so; the screen is in the message."""
        try:
            wait_for(condition, what)
        except AssertionError as late:
            raise AssertionError(f"{late}; on the screen is\n{self.text}") from None

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._ours, text.encode())

    def resize(self, columns: int, rows: int) -> None:
        """Give the window another size, as its user does; the kernel tells the program."""
        with self._lock:
            self._screen.resize(rows, columns)
        self._resize(columns, rows)

    def _resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def clear(self) -> None:
        """Take away what is on the screen, as another program would."""
        with self._lock:
            self._screen.reset()

    @property
    def has_modes_of_before(self) -> bool:
        """Whether the terminal is in the modes in which the program found it."""
        return termios.tcgetattr(self._theirs) == self.modes

    def end(self) -> int:
        """Wait for the program, and for all that it wrote; its status."""
        status = self.process.wait(30)
        self.is_restored = self.has_modes_of_before
        os.close(self._theirs)
        self._reader.join(30)
        os.close(self._ours)
        return status
