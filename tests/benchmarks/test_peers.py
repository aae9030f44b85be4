"""What is said of a tool that got a damaged checkpoint."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.peers import RAN, outcome


@pytest.mark.parametrize(
    ("program", "said"),
    [
        ("raise SystemExit(3)", "refused"),
        (f"open('{RAN}', 'w'); raise SystemExit(3)", "**runs it**"),
        ("import os; os.mkdir('out'); open('out/a', 'w').write('1')", "right"),
        ("import os; os.mkdir('out'); open('out/a', 'w').write('2')", "**wrong, status 0**"),
        ("import os; os.mkdir('out')", "**wrong, status 0**"),
    ],
)
def test_outcomes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, said: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "right").mkdir()
    (tmp_path / "right" / "a").write_text("1")
    command = [sys.executable, "-S", "-c", program]
    assert outcome(command, tmp_path / "out", tmp_path / "right") == said
    assert sorted(path.name for path in tmp_path.iterdir()) == ["right"]
