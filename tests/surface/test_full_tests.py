"""Full matrices run in scripts/judge and nowhere else, so it has to name the files that have some:
tests of the mark `full`, and those that `tests.matrices.FULL` adds."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FULL = re.compile(r"mark\.full\b|^from tests\.matrices import .*\bFULL\b", re.MULTILINE)


def test_the_judge_runs_every_file_with_full_tests() -> None:
    named = re.findall(r"tests/[\w/.]+", (ROOT / "scripts/judge").read_text())
    files = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("test_*.py")
        if path.name != Path(__file__).name and FULL.search(path.read_text("utf-8"))
    ]
    assert len(files) > 10
    assert [
        each
        for each in sorted(files)
        if not any(each == name or each.startswith(f"{name}/") for name in named)
    ] == []
