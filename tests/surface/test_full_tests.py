"""Full matrices run in scripts/judge and nowhere else, so it has to name the files that have some:
tests of the mark `full`, and those that `tests.matrices.FULL` adds, which `-m full` leaves out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUNS = re.findall(
    r"^ZEROTOOLS_TEST_FULL=1 .*",
    (ROOT / "scripts/judge").read_text().replace("\\\n", ""),
    re.MULTILINE,
)


@pytest.mark.parametrize(
    ("kind", "runs"),
    [
        (r"mark\.full\b", RUNS),
        (
            r"^from tests\.matrices import .*\bFULL\b",
            [run for run in RUNS if "pytest -q -m " not in run],
        ),
    ],
)
def test_the_judge_runs_every_file_with_full_tests(kind: str, runs: list[str]) -> None:
    named = re.findall(r"tests/[\w/.]+", " ".join(runs))
    files = [
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "tests").rglob("test_*.py")
        if path.name != Path(__file__).name
        and re.search(kind, path.read_text("utf-8"), re.MULTILINE)
    ]
    assert len(files) > 10
    assert [
        each
        for each in sorted(files)
        if not any(each == name or each.startswith(f"{name}/") for name in named)
    ] == []
