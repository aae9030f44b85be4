from __future__ import annotations

import asyncio

from textual.app import App, ComposeResult
from textual.strip import Strip

from zerotools.cli.top.screen.canvas import Canvas
from zerotools.cli.top.screen.palette import styles_of


class Counted(Canvas):
    """Notes which lines are drawn."""

    drawn: list[int]

    def render_line(self, y: int) -> Strip:
        self.drawn.append(y)
        return super().render_line(y)


class OneCanvas(App[None]):
    def __init__(self) -> None:
        super().__init__()
        self.canvas = Counted(styles_of(None, colours=True), lambda: None)
        self.canvas.drawn = []

    def compose(self) -> ComposeResult:
        yield self.canvas


def test_only_lines_that_differ_are_drawn_again() -> None:
    async def run() -> None:
        app = OneCanvas()
        async with app.run_test(size=(20, 6)) as pilot:
            lines = [[(f"line {n}", "strong")] for n in range(5)]
            app.canvas.show(lines)
            await pilot.pause()
            app.canvas.drawn.clear()
            app.canvas.show(lines)
            await pilot.pause()
            assert app.canvas.drawn == []
            app.canvas.show([*lines[:2], [("line 2", "bad")], lines[3]])
            await pilot.pause()
            assert sorted(app.canvas.drawn) == [2, 4]
            assert app.canvas.text == "line 0\nline 1\nline 2\nline 3"

    asyncio.run(run())


def test_a_line_is_as_wide_as_the_terminal() -> None:
    async def run() -> None:
        app = OneCanvas()
        async with app.run_test(size=(10, 3)) as pilot:
            app.canvas.show([[("数据清洗数据", ""), ("x" * 30, "")], []])
            await pilot.pause()
            assert [app.canvas.render_line(y).cell_length for y in range(3)] == [10, 10, 10]

    asyncio.run(run())
