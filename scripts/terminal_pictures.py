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


@dataclass(frozen=True)
class Scheme:
    """The colours of a terminal: its background, its text, and the named colours of pyte.

    `colorfgbg` is the value of the variable COLORFGBG, from which a program sees the background.
    """

    paper: str
    ink: str
    colours: Mapping[str, str]
    colorfgbg: str


DARK = Scheme(
    paper="#16181d",
    ink="#d7dae0",
    colours={
        "black": "#3b4048",
        "red": "#f0716b",
        "green": "#7fc97a",
        "brown": "#e0b35c",
        "blue": "#6ea8f7",
        "magenta": "#c98be0",
        "cyan": "#5fc3cf",
        "white": "#d7dae0",
        "brightblack": "#7d8490",
    },
    colorfgbg="15;0",
)
LIGHT = Scheme(
    paper="#ffffff",
    ink="#24292f",
    colours={
        "black": "#24292f",
        "red": "#c62828",
        "green": "#1b7f3b",
        "brown": "#946200",
        "blue": "#0b5cad",
        "magenta": "#8e3fa8",
        "cyan": "#0f7285",
        "white": "#6e7781",
        "brightblack": "#6e7781",
    },
    colorfgbg="0;15",
)
SCHEMES = {"dark": DARK, "light": LIGHT}
FAINT = 0.62
"""The opacity of faint text (SGR 2)."""
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


class Screen(pyte.Screen):
    """A screen of pyte that also keeps which text is faint, as the attribute `strikethrough`."""

    def select_graphic_rendition(self, *codes: int) -> None:
        """Change the attributes of the text that follows (SGR)."""
        super().select_graphic_rendition(*codes)
        left = list(codes)
        while left:
            code = left.pop(0)
            if code in (38, 48):  # a colour of the palette: 5;N, or of the screen: 2;R;G;B
                del left[: 2 if left[:1] == [5] else 4]
            elif code in (0, 2, 22):
                attributes = self.cursor.attrs._replace(strikethrough=code == 2)
                self.cursor.attrs = attributes


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
                _text(0, 0, "$ ", DARK.colours["green"], "b") + _text(2, 0, command[:end], "", "b"),
            )
            self.seconds += 0.03
        self._used += 1
        self.seconds += 0.3

    def play(self, output: Output) -> None:
        """Show what a command wrote, in at most `LONGEST` seconds."""
        screen = Screen(self.columns, 400)
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
    title: str,
    output: Output,
    size: tuple[int, int],
    until: Callable[[str], bool],
    scheme: Scheme = DARK,
) -> str:
    """The last screen of a program whose text fulfils `until`, as SVG.

    Raises:
        ValueError: no screen does.
    """
    screen = Screen(*size)
    stream = pyte.ByteStream(screen)
    found = None
    for _, data in output:
        stream.feed(data)
        if until("\n".join(screen.display)):
            found = "".join(
                _line(screen, row, MARGIN + row * LINE, MARGIN, scheme) for row in range(size[1])
            )
    if found is None:
        raise ValueError(
            f"no screen is as asked for; the last one is\n{chr(10).join(screen.display)}"
        )
    return _svg(title, *size, found, "", scheme)


def _svg(title: str, columns: int, rows: int, body: str, style: str, scheme: Scheme = DARK) -> str:
    width, height = columns * CELL + 2 * MARGIN, rows * LINE + 2 * MARGIN
    edge = "" if scheme is DARK else ' stroke="#d0d7de"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">'
        f"<title>{escape(title)}</title><style>text{{font:{FONT}px ui-monospace,'DejaVu Sans Mono',"
        f"Menlo,Consolas,monospace;white-space:pre;fill:{scheme.ink}}}.b{{font-weight:700}}"
        f".q{{fill-opacity:{FAINT}}}{style}</style>"
        f'<rect width="100%" height="100%" rx="8" fill="{scheme.paper}"{edge}/>{body}</svg>\n'
    )


def _line(
    screen: pyte.Screen, row: int, top: float, left: float = 0.0, scheme: Scheme = DARK
) -> str:
    """The characters of a row that are no blanks, in runs of one look."""
    cells = [(column, screen.buffer[row][column]) for column in range(screen.columns)]
    drawn = []
    for look, group in groupby(cells, lambda cell: _look(cell[1], scheme)):
        run = list(group)
        text = "".join(cell.data for _, cell in run)
        ink, paper, classes = look
        if paper is not None:
            drawn.append(
                f'<rect x="{left + run[0][0] * CELL:g}" y="{top:g}" '
                f'width="{len(text) * CELL:g}" height="{LINE}" fill="{paper}"/>'
            )
        stripped = text.strip()
        if stripped:
            first = run[0][0] + len(text) - len(text.lstrip())
            drawn.append(_text(first, top, stripped, ink, classes, left))
    return "".join(drawn)


def _text(column: int, top: float, text: str, ink: str, classes: str, left: float = 0.0) -> str:
    """A text in the colour `ink`; in that of all text if `ink` is empty."""
    colour = f' style="fill:{ink}"' if ink else ""
    named = f' class="{classes}"' if classes else ""
    return (
        f'<text x="{left + column * CELL:g}" y="{top + FONT:g}" textLength="{len(text) * CELL:g}"'
        f"{named}{colour}>{escape(text)}</text>"
    )


def _look(cell: pyte.screens.Char, scheme: Scheme) -> tuple[str, str | None, str]:
    """The colours of text and background, empty or None where they are the terminal's own, and the
    classes of the text.
    """
    ink, paper = _colour(cell.fg, scheme), _colour(cell.bg, scheme) or None
    if cell.reverse:
        ink, paper = paper or scheme.paper, ink or scheme.ink
    classes = [name for name, has in (("b", cell.bold), ("q", cell.strikethrough)) if has]
    return ink, paper, " ".join(classes)


def _colour(name: str, scheme: Scheme) -> str:
    if name == "default":
        return ""
    plain = name.removeprefix("bright") if name not in scheme.colours else name
    return scheme.colours.get(plain, f"#{name}")


def write(path: Path, svg: str) -> None:
    path.write_text(svg, "utf-8")
    print(f"{path}: {len(svg) / 1024:.0f} KiB")
