"""How far a conversion is, on a terminal and elsewhere."""

from __future__ import annotations

import io

import pytest

from zerotools.cli.output.progress_bar import ProgressLines, shown_progress
from zerotools.public.progress import ProgressUpdate


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("stream", [Terminal(), io.StringIO()])
def test_a_refusal_is_not_preceded_by_an_empty_bar(stream: io.StringIO) -> None:
    with shown_progress(stream):
        pass
    assert stream.getvalue() == ""


def test_an_interrupted_bar_is_closed_before_anything_is_said() -> None:
    stream = Terminal()

    def interrupted() -> None:
        with shown_progress(stream) as show:
            show(ProgressUpdate("writing", 2**19, 2**20))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert "512k/1.00M" in stream.getvalue().replace("iB", "")
    assert stream.getvalue().endswith("\n")


def test_without_a_terminal_a_line_comes_every_half_minute() -> None:
    stream, now = io.StringIO(), [0.0]
    lines = ProgressLines(4 * 2**30, "writing", stream, clock=lambda: now[0])
    for _ in range(4):
        now[0] += 20
        lines.advance(2**30)
    assert stream.getvalue().splitlines() == [
        "writing: 50 %, 2.0 GiB of 4.0 GiB, 40 s left",
    ]
