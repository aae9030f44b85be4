"""The widget that shows lines. Of a new screen it writes the lines alone that differ: what does not
change costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.segment import Segment
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from zerotools.cli.top.drawing.styled_lines import Line
from zerotools.cli.top.screen.palette import Styles


class Canvas(Widget, can_focus=True):
    """Lines of pieces, from the top. `resized` is called after a change of size."""

    DEFAULT_CSS = "Canvas { width: 1fr; height: 1fr; }"

    def __init__(self, styles: Styles, resized: Callable[[], None]) -> None:
        super().__init__()
        self._resized = resized
        self._styles_by_meaning = styles
        self._lines: list[Line] = []

    @property
    def text(self) -> str:
        """The displayed text, without its styles."""
        return "\n".join("".join(text for text, _ in line).rstrip() for line in self._lines)

    def show(self, lines: Sequence[Line]) -> None:
        """Replace all lines."""
        before, self._lines = self._lines, [list(line) for line in lines]
        columns = self.size.width
        for y in range(max(len(before), len(self._lines))):
            old = before[y] if y < len(before) else None
            new = self._lines[y] if y < len(self._lines) else None
            if old != new:
                self.refresh(Region(0, y, columns, 1))

    def on_resize(self) -> None:
        """Lay out the screen again, in the new size."""
        self._resized()

    def render_line(self, y: int) -> Strip:
        """Return one line in the form for textual."""
        line = self._lines[y] if y < len(self._lines) else []
        styles = self._styles_by_meaning
        segments = [Segment(text, styles.get(meaning)) for text, meaning in line if text]
        return Strip(segments).adjust_cell_length(self.size.width)
