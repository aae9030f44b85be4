"""Draw what commands write to a terminal as SVG: one screen, or a recording that plays."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from xml.sax.saxutils import escape

import pyte

CELL, LINE, MARGIN, FONT = 8.0, 17, 14, 13
PAPER, INK = "#16181d", "#d7dae0"
COLOURS = {
    "black": "#3b4048",
    "red": "#f0716b",
    "green": "#7fc97a",
    "brown": "#e0b35c",
    "blue": "#6ea8f7",
    "magenta": "#c98be0",
    "cyan": "#5fc3cf",
    "white": "#d7dae0",
    "brightblack": "#7d8490",
}
UNKNOWN = re.compile(rb"\x1b\[[<>=][0-9;]*[a-zA-Z]|\x1b\[\?[0-9;]*\$[a-z]|\x1b\[\?u")
"""Questions to the terminal and modes of its keyboard, which pyte would show as text."""
LONGEST, SHORTEST_PAUSE = 7.0, 0.08
Output = list[tuple[float, bytes]]
"""What a command wrote, with the seconds since its start."""


def record(
    command: Sequence[str],
    environment: Mapping[str, str],
    size: tuple[int, int],
    keys: Sequence[tuple[float, bytes]] = (),
) -> Output:
    """Run a command in a terminal of `size` columns and rows, and press `keys` at their seconds.

    Raises:
        RuntimeError: the command failed.
    """
    ours, theirs = pty.openpty()
    fcntl.ioctl(ours, termios.TIOCSWINSZ, struct.pack("HHHH", size[1], size[0], 0, 0))
    without = ("COLUMNS", "LINES", "NO_COLOR", "COLORTERM", "COLORFGBG", "TERM_PROGRAM")
    base = {name: value for name, value in os.environ.items() if name not in without}
    process = subprocess.Popen(
        [sys.executable, "-m", *command],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**base, "TERM": "xterm-256color", **environment},
        start_new_session=True,
    )
    os.close(theirs)
    began, output, waiting = time.monotonic(), Output(), list(keys)
    while True:
        passed = time.monotonic() - began
        if waiting and passed >= waiting[0][0]:
            os.write(ours, waiting.pop(0)[1])
        if not select.select([ours], [], [], 0.05)[0]:
            continue
        try:
            data = os.read(ours, 1 << 16)
        except OSError:  # the other end is closed
            break
        output.append((passed, UNKNOWN.sub(b"", data)))
    os.close(ours)
    if status := process.wait():
        written = b"".join(data for _, data in output).decode(errors="replace")
        raise RuntimeError(f"{' '.join(command)} ended with status {status}:\n{written[-2000:]}")
    return output


@dataclass
class Recording:
    """The lines of a session, and when each was on the screen."""

    columns: int
    rows: int
    seconds: float = 0.0
    _versions: dict[int, list[tuple[float, str]]] = field(default_factory=dict)
    _scrolls: list[tuple[float, int]] = field(default_factory=list)
    _used: int = 0

    def type(self, command: str) -> None:
        """Type a command after the prompt."""
        for end in range(len(command) + 1):
            self._show(
                self._used,
                _text(0, 0, "$ ", "#7fc97a", True) + _text(2, 0, command[:end], INK, True),
            )
            self.seconds += 0.03
        self._used += 1
        self.seconds += 0.3

    def play(self, output: Output) -> None:
        """Show what a command wrote, in at most `LONGEST` seconds."""
        screen = pyte.Screen(self.columns, 400)
        stream = pyte.ByteStream(screen)
        before, pace = 0.0, min(1.0, LONGEST / max(output[-1][0], 0.1))
        for at, data in output:
            stream.feed(data)
            pause = (at - before) * pace
            before = at
            self.seconds += pause
            if pause < SHORTEST_PAUSE and at != output[-1][0]:
                continue
            for row in sorted(screen.dirty):
                self._show(self._used + row, _line(screen, row, 0))
            screen.dirty.clear()
        for row in sorted(screen.dirty):
            self._show(self._used + row, _line(screen, row, 0))
        self._used += screen.cursor.y + 1
        self.seconds += 1.2

    def _show(self, row: int, line: str) -> None:
        versions = self._versions.get(row, [])
        if line == (versions[-1][1] if versions else ""):
            return
        self._versions[row] = [*versions, (self.seconds, line)]
        last = self._scrolls[-1][1] if self._scrolls else 0
        if row - self.rows + 1 > last:
            self._scrolls.append((self.seconds, row - self.rows + 1))

    def svg(self, title: str) -> str:
        """The recording as SVG, which plays once and ends with its last screen."""
        body = []
        for row, versions in sorted(self._versions.items()):
            for (begins, line), after in zip(versions, [*versions[1:], None], strict=True):
                if not line:
                    continue
                shown = f"s 0s {begins:.2f}s forwards"
                hidden = f",h 0s {after[0]:.2f}s forwards" if after else ""
                place = f"translate({MARGIN} {MARGIN + row * LINE})"
                body.append(
                    f'<g class="l{" g" if after else ""}" transform="{place}" '
                    f'style="animation:{shown}{hidden}">{line}</g>'
                )
        total = max(self.seconds, 1.0)
        steps = "".join(
            f"{100 * at / total:.3f}%{{transform:translateY({-rows * LINE}px)}}"
            for at, rows in self._scrolls
        )
        last = self._scrolls[-1][1] if self._scrolls else 0
        style = (
            ".l{visibility:hidden}@keyframes s{to{visibility:visible}}"
            "@keyframes h{to{visibility:hidden}}"
            f"@keyframes r{{0%{{transform:none}}{steps}}}"
            f"#r{{transform:translateY({-last * LINE}px);"
            f"animation:r {total:.2f}s step-end}}"
            "@media(prefers-reduced-motion){.l:not(.g){visibility:visible;animation:none!important}"
            ".g{animation:none!important}#r{animation:none}}"
        )
        return _svg(title, self.columns, self.rows, f'<g id="r">{"".join(body)}</g>', style)


def screen_svg(
    title: str, output: Output, size: tuple[int, int], until: Callable[[str], bool]
) -> str:
    """The last screen of a program whose text fulfils `until`, as SVG.

    Raises:
        ValueError: no screen does.
    """
    screen = pyte.Screen(*size)
    stream = pyte.ByteStream(screen)
    found = None
    for _, data in output:
        stream.feed(data)
        if until("\n".join(screen.display)):
            found = "".join(
                _line(screen, row, MARGIN + row * LINE, MARGIN) for row in range(size[1])
            )
    if found is None:
        raise ValueError(
            f"no screen is as asked for; the last one is\n{chr(10).join(screen.display)}"
        )
    return _svg(title, *size, found, "")


def _svg(title: str, columns: int, rows: int, body: str, style: str) -> str:
    width, height = columns * CELL + 2 * MARGIN, rows * LINE + 2 * MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">'
        f"<title>{escape(title)}</title><style>text{{font:{FONT}px ui-monospace,'DejaVu Sans Mono',"
        f"Menlo,Consolas,monospace;white-space:pre;fill:{INK}}}.b{{font-weight:700}}{style}</style>"
        f'<rect width="100%" height="100%" rx="8" fill="{PAPER}"/>{body}</svg>\n'
    )


def _line(screen: pyte.Screen, row: int, top: float, left: float = 0.0) -> str:
    """The characters of a row that are no blanks, in runs of one look."""
    cells = [(column, screen.buffer[row][column]) for column in range(screen.columns)]
    drawn = []
    for look, group in groupby(cells, lambda cell: _look(cell[1])):
        run = list(group)
        text = "".join(cell.data for _, cell in run)
        ink, paper, is_bold = look
        if paper is not None:
            drawn.append(
                f'<rect x="{left + run[0][0] * CELL:g}" y="{top:g}" '
                f'width="{len(text) * CELL:g}" height="{LINE}" fill="{paper}"/>'
            )
        stripped = text.strip()
        if stripped:
            first = run[0][0] + len(text) - len(text.lstrip())
            drawn.append(_text(first, top, stripped, ink, is_bold, left))
    return "".join(drawn)


def _text(column: int, top: float, text: str, ink: str, is_bold: bool, left: float = 0.0) -> str:
    colour = "" if ink == INK else f' style="fill:{ink}"'
    bold = ' class="b"' if is_bold else ""
    return (
        f'<text x="{left + column * CELL:g}" y="{top + FONT:g}" textLength="{len(text) * CELL:g}"'
        f"{bold}{colour}>{escape(text)}</text>"
    )


def _look(cell: pyte.screens.Char) -> tuple[str, str | None, bool]:
    ink = _colour(cell.fg, INK)
    paper = None if cell.bg == "default" else _colour(cell.bg, PAPER)
    if cell.reverse:
        ink, paper = paper or PAPER, ink
    return ink, paper, cell.bold


def _colour(name: str, default: str) -> str:
    if name == "default":
        return default
    plain = name.removeprefix("bright") if name not in COLOURS else name
    return COLOURS.get(plain, f"#{name}")


def write(path: Path, svg: str) -> None:
    path.write_text(svg, "utf-8")
    print(f"{path}: {len(svg) / 1024:.0f} KiB")
