"""The page of faults says of each what shows it, and every test that it names is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "tests/faults.md"
FAULTS = 67
NOT_SHOWN = ("not done", "not testable")


def rows() -> dict[str, tuple[range, str]]:
    """Numbers and text of each row."""
    found = re.findall(
        r"^\| F(\d\d)(?:,? (?:to )?F(\d\d))?[^|]*\|([^|]*)\|$", PAGE.read_text(), re.M
    )
    return {first: (range(int(first), int(last or first) + 1), text) for first, last, text in found}


def test_every_fault_has_one_row() -> None:
    numbers = [number for covered, _ in rows().values() for number in covered]
    assert sorted(numbers) == list(range(1, FAULTS + 1))


def test_every_row_names_a_test_or_says_that_there_is_none() -> None:
    silent = [
        first
        for first, (_, text) in rows().items()
        if "::" not in text and not any(words in text for words in NOT_SHOWN)
    ]
    assert silent == []


def test_every_test_that_is_named_is_there() -> None:
    # `tests/a/test_b.py::test_c`, and then further ones of the same file as `::test_d`
    file, missing = "", []
    for named, test in re.findall(r"`(tests/[\w/]+\.py)?::(test_\w+)`", PAGE.read_text()):
        file = named or file
        if not re.search(rf"^(?:async )?def {test}\(", (ROOT / file).read_text(), re.M):
            missing.append(f"{file}::{test}")
    assert missing == []
    assert re.findall(r"`tests/[^`:]*`", PAGE.read_text()) == [], "name the test, not its file"
