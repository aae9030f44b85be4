"""The changelog is short: entries of one line, in known groups, a few for each release."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

from zerotools.version import BASE, version_order

ROOT = Path(__file__).resolve().parents[2]
LINES = (ROOT / "CHANGELOG.md").read_text("utf-8").splitlines()
GROUPS = (
    "Breaking changes",
    "Checkpoints",
    "Training",
    "Queue",
    "Machine",
    "Python and HTTP",
)
"""What users do, in the order in which a release lists it."""
MOST_ENTRIES = 30
LONGEST_ENTRY = 160
RELEASE = re.compile(r"## \[(\d+\.\d+\.\d+)\] - (unreleased|\d{4}-\d{2}-\d{2})")


def releases() -> dict[str, list[str]]:
    """The lines below the heading of each release."""
    found: dict[str, list[str]] = {}
    for line in LINES:
        if line.startswith("## "):
            named = RELEASE.fullmatch(line)
            assert named is not None, line
            assert named[1] not in found, line
            found[named[1]] = []
        elif found:
            found[list(found)[-1]].append(line)
    return found


def begun_version() -> str | None:
    """The release that has no entry yet, as its development has just begun."""
    version, lines = next(iter(releases().items()))
    return version if ".dev" in BASE and not any(lines) else None


def test_the_newest_release_is_first_and_is_that_of_the_source() -> None:
    versions = list(releases())
    assert versions == sorted(versions, key=version_order, reverse=True)
    assert versions[0] == BASE.removesuffix(".dev0")


def test_entries_are_one_line_each_and_few() -> None:
    for version, lines in releases().items():
        if version == begun_version():
            continue
        assert [line for line in lines if line and not line.startswith(("- ", "### "))] == []
        entries = [line for line in lines if line.startswith("- ")]
        assert [line for line in entries if len(line) > LONGEST_ENTRY] == []
        assert 0 < len(entries) <= MOST_ENTRIES, version


def test_groups_are_known_and_in_their_order() -> None:
    for version, lines in releases().items():
        if version == begun_version():
            continue
        groups = [line.removeprefix("### ") for line in lines if line.startswith("### ")]
        assert groups == [group for group in GROUPS if group in groups], version
        assert lines[lines.index(f"### {groups[0]}") - 1] == ""
        for above, line in pairwise(lines):
            if above.startswith("### "):
                assert line.startswith("- "), f"{version}: {above} is empty"
