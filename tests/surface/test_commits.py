"""Subjects of commits name an area first, and are short."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SINCE = "2026-11-29T00:00:00Z"
"""Commits from this moment on follow the rule."""
LONGEST = 72
SUBJECT = re.compile(r"[a-z][a-z0-9_./-]*(?:, [a-z][a-z0-9_./-]*)*: \S.*[^.\s]")


def complaint(subject: str) -> str | None:
    """What is wrong with the subject of a commit; None: nothing."""
    if len(subject) > LONGEST:
        return f"has {len(subject)} characters, and may have {LONGEST}"
    if not SUBJECT.fullmatch(subject):
        return "does not begin with an area, such as `cli: `, or ends with a full stop"
    return None


@pytest.mark.parametrize(
    ("subject", "is_well"),
    [
        ("cli: options in groups on help pages", True),
        ("docs, daemon: units are printed", True),
        ("release: 0.3.0", True),
        ("cli: options in groups on help pages.", False),
        ("The names of adapters' weights are imported", False),
        ("cli:options", False),
        (f"cli: {'x' * 68}", False),
    ],
)
def test_a_subject_is_judged(subject: str, is_well: bool) -> None:
    assert (complaint(subject) is None) == is_well


def test_commits_since_the_rule_follow_it() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout")
    command = ["git", "-C", str(ROOT), "log", "--no-merges", f"--since={SINCE}", "--format=%h %s"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"git does not show the history: {done.stderr.strip()}")
    found = [
        f"{line}: {why}"
        for line in done.stdout.splitlines()
        if (why := complaint(line.partition(" ")[2])) is not None
    ]
    assert found == []
