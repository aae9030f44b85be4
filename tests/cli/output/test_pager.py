from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.cli.top.real_terminal import RealTerminal
from tests.golden_files import JOB
from zerotools.cli.output.pager import print_paged


def test_a_page_longer_than_the_terminal_is_shown_in_the_pager(tmp_path: Path) -> None:
    pager = tmp_path / "pager"
    pager.write_text("#!/bin/sh\necho paged; cat\n")
    pager.chmod(0o755)
    shown = {}
    for option, rows in (("auto", 9), ("auto", 24), ("never", 9)):
        words = ["-m", "zerotools", "inspect", str(JOB), "--pager", option]
        terminal = RealTerminal(words, {"PAGER": str(pager)}, (80, rows))
        assert terminal.end() == 0
        shown[option, rows] = b"paged" in terminal.written
        assert b"\x1b[32mCOMPLETE" in terminal.written, "in colour, also in a pager"
    assert shown == {("auto", 9): True, ("auto", 24): False, ("never", 9): False}


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("environment", [{"NO_PAGER": "1"}, {"PAGER": ""}, {"PAGER": "cat"}])
def test_a_user_may_have_no_pager(
    environment: Mapping[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = _Terminal()
    monkeypatch.setattr("sys.stdin", _Terminal())
    monkeypatch.setattr("sys.stdout", out)
    print_paged(["a line"] * 500, environment=environment)
    assert out.getvalue() == "a line\n" * 500
