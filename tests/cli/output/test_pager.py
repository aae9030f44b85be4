from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.top.real_terminal import RealTerminal
from tests.golden_files import JOB


@pytest.mark.parametrize(
    ("option", "rows", "environment", "is_paged"),
    [
        ("auto", 9, {}, True),
        ("auto", 24, {}, False),
        ("never", 9, {}, False),
        ("auto", 9, {"NO_PAGER": "1"}, False),
        ("auto", 9, {"PAGER": "cat"}, False),
        ("auto", 9, {"PAGER": ""}, False),
    ],
)
def test_a_page_longer_than_the_terminal_is_shown_in_the_pager(
    option: str, rows: int, environment: dict[str, str], is_paged: bool, tmp_path: Path
) -> None:
    pager = tmp_path / "pager"
    pager.write_text("#!/bin/sh\necho paged; cat\n")
    pager.chmod(0o755)
    words = ["-m", "zerotools", "inspect", str(JOB), "--pager", option]
    terminal = RealTerminal(words, {"PAGER": str(pager), **environment}, (80, rows))
    assert terminal.end() == 0
    assert (b"paged" in terminal.written) == is_paged
    assert b"\x1b[32mCOMPLETE" in terminal.written, "in colour, also in a pager"
