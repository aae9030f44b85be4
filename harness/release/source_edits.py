"""Edits the files that contain the version, for a release and for the commit after it."""

from __future__ import annotations

import re
from datetime import date
from pathlib import Path

from zerotools.core.errors import BadRequest

VERSION_FILE = Path("zerotools/version.py")
CHANGELOG = Path("CHANGELOG.md")
CITATION = Path("CITATION.cff")
EDITED = (VERSION_FILE, CHANGELOG, CITATION)
_BASE = re.compile(r'^BASE = "(.*)"$', re.MULTILINE)
_RELEASE = re.compile(r"\d+\.\d+\.\d+")
_HEADING = re.compile(r"^## \[(.*?)\] - (.*)$", re.MULTILINE)


def base_in(root: Path) -> str:
    """Return the version in the source at `root`.

    Raises:
        BadRequest: the source has no version.
    """
    found = _BASE.search((root / VERSION_FILE).read_text("utf-8"))
    if found is None:
        raise BadRequest(f"{root / VERSION_FILE} has no line BASE = ")
    return found[1]


def next_of(version: str) -> str:
    """Return the version that usually follows `version`, such as 0.4.0 after 0.3.0."""
    major, minor, _ = version.split(".")
    return f"{major}.{int(minor) + 1}.0"


def check_version(version: str) -> None:
    """Check the form of a version.

    Raises:
        BadRequest: `version` is not X.Y.Z.
    """
    if not _RELEASE.fullmatch(version):
        raise BadRequest(f"{version!r} is not the version of a release: write X.Y.Z, such as 0.3.0")


def set_base(root: Path, version: str) -> None:
    """Write `version` into the source."""
    path = root / VERSION_FILE
    path.write_text(_BASE.sub(f'BASE = "{version}"', path.read_text("utf-8"), count=1), "utf-8")


def date_changelog(root: Path, version: str, day: date) -> None:
    """Write the date `day` into the heading of the changelog's section for `version`.

    Raises:
        BadRequest: the section is not the first one, has a date already, or is empty.
    """
    path = root / CHANGELOG
    text = path.read_text("utf-8")
    headings = list(_HEADING.finditer(text))
    if not headings or headings[0][1] != version:
        first = headings[0][1] if headings else "none"
        raise BadRequest(f"the first section of {CHANGELOG} is {first}, but must be {version}")
    if headings[0][2] != "unreleased":
        raise BadRequest(f"{CHANGELOG} says that {version} was released on {headings[0][2]}")
    end = headings[1].start() if len(headings) > 1 else len(text)
    if "\n- " not in text[headings[0].end() : end]:
        raise BadRequest(f"{CHANGELOG} has no entry for {version}")
    dated = f"## [{version}] - {day.isoformat()}"
    path.write_text(text[: headings[0].start()] + dated + text[headings[0].end() :], "utf-8")


def open_changelog(root: Path, version: str) -> None:
    """Add an empty section for the next release to the changelog."""
    path = root / CHANGELOG
    text = path.read_text("utf-8")
    first = _HEADING.search(text)
    at = first.start() if first else len(text)
    path.write_text(f"{text[:at]}## [{version}] - unreleased\n\n{text[at:]}", "utf-8")


def date_citation(root: Path, version: str, day: date) -> None:
    """Write the version and the date of the release into CITATION.cff."""
    path = root / CITATION
    lines = path.read_text("utf-8").splitlines()
    kept = [line for line in lines if not line.startswith(("version:", "date-released:"))]
    named = [*kept, f"version: {version}", f"date-released: {day.isoformat()}"]
    path.write_text("\n".join(named) + "\n", "utf-8")
