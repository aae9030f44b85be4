"""The version of zerotools, with the commit of the source.

`0.3.0` is a release. `0.3.0.dev0+g1a2b3c4d5` is the source at a commit before that release.
`.dirty` at the end means that files differed from the commit when the wheel was built.

This module imports only the standard library, because `hatch_build.py` loads it by its path.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

BASE = "0.3.0.dev0"
"""The release of this source. With `.dev0` it is the next release."""
BUILT = ""
"""The whole version, in a wheel or a source distribution: `hatch_build.py` writes it."""
ARCHIVED = "$Format:%H$"
"""The commit in an archive: `git archive` replaces this text (see `.gitattributes`)."""

COMMIT_DIGITS = 9
_COMMIT = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_PARTS = re.compile(r"(\d{1,9}(?:\.\d{1,9})*)(.*)", re.DOTALL)
_BEFORE_RELEASE = re.compile(r"\.?(?:dev|a|b|rc)\d")


@cache
def version() -> str:
    """Return the version of this process. It does not change if another commit is checked out
    later."""
    return version_of(Path(__file__).resolve().parents[1])


def version_of(root: Path, base: str = BASE, built: str = BUILT, archived: str = ARCHIVED) -> str:
    """Return the version of the source in `root`."""
    if built:
        return built
    if commit := commit_of(root):
        return with_commit(base, commit)
    if ".dev" in base and _COMMIT.fullmatch(archived):
        return with_commit(base, archived)
    return base


def with_commit(base: str, commit: str, *, is_dirty: bool = False) -> str:
    """Return `base` with the first digits of a commit, in the form of PEP 440."""
    return f"{base}+g{commit[:COMMIT_DIGITS]}{'.dirty' if is_dirty else ''}"


def commit_of(root: Path) -> str | None:
    """Read the commit that is checked out in `root`, without running git. Return None if `root` is
    not a checkout, or if git stores its references in another format."""
    try:
        git = _git_directory(root / ".git")
        head = (git / "HEAD").read_text().strip()
        if head.startswith("ref: "):
            head = _resolved(git, head.removeprefix("ref: ").strip())
    except (OSError, ValueError):
        return None
    return head if _COMMIT.fullmatch(head) else None


def _git_directory(entry: Path) -> Path:
    """Return the git directory of a checkout. In a worktree or submodule, `.git` is a file with its
    path."""
    if entry.is_dir():
        return entry
    return entry.parent / entry.read_text().strip().removeprefix("gitdir: ")


def _resolved(git: Path, reference: str) -> str:
    """Return the commit of a branch, or "" if it has no commit yet."""
    common = git
    if (pointer := git / "commondir").is_file():
        common = git / pointer.read_text().strip()
    if (loose := common / reference).is_file():
        return loose.read_text().strip()
    for line in (common / "packed-refs").read_text().splitlines():
        commit, _, name = line.partition(" ")
        if name == reference:
            return commit
    return ""


def base_of(text: str) -> str:
    """Return a version without its commit: `0.3.0.dev0` for `0.3.0.dev0+g1a2b3c4d5`."""
    return text.partition("+")[0]


def version_order(text: str) -> tuple[tuple[int, ...], bool]:
    """Return a key that sorts versions by release. A version before a release, such as
    `0.3.0.dev0`, comes before this release. Versions that differ only in the commit have equal
    keys."""
    found = _PARTS.match(base_of(text))
    if found is None:
        return (), False
    numbers = [int(number) for number in found[1].split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers), not _BEFORE_RELEASE.match(found[2])
