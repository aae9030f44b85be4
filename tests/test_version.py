"""The version names the commit, read from what git keeps, and compares by the release."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import zerotools
from zerotools.version import base_of, commit_of, version, version_of, version_order

ROOT = Path(__file__).resolve().parents[1]
BEFORE = "0.3.0.dev0"


def git(directory: Path, *arguments: str) -> str:
    who = ("-c", "user.name=a", "-c", "user.email=a@b")
    command = ["git", "-C", str(directory), *who, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    root = tmp_path / "checkout"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    git(root, "commit", "-q", "--allow-empty", "-m", "first")
    return root


def test_the_version_of_a_checkout_names_its_commit(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    assert version_of(checkout, BEFORE) == f"0.3.0.dev0+g{commit[:9]}"
    git(checkout, "commit", "-q", "--allow-empty", "-m", "second")
    assert commit_of(checkout) == git(checkout, "rev-parse", "HEAD") != commit


def test_packed_references_worktrees_and_detached_heads_are_read(checkout: Path) -> None:
    commit = git(checkout, "rev-parse", "HEAD")
    git(checkout, "branch", "feature/a")
    git(checkout, "pack-refs", "--all")
    assert not (checkout / ".git/refs/heads/main").exists()
    assert commit_of(checkout) == commit
    other = checkout.parent / "other"
    git(checkout, "worktree", "add", "-q", str(other), "feature/a")
    assert (other / ".git").is_file()
    assert commit_of(other) == commit
    git(other, "commit", "-q", "--allow-empty", "-m", "second")
    assert commit_of(other) == git(other, "rev-parse", "HEAD") != commit
    git(checkout, "checkout", "-q", "--detach", "feature/a")
    assert commit_of(checkout) == commit_of(other)


def test_without_a_commit_the_version_is_the_base(tmp_path: Path) -> None:
    assert version_of(tmp_path, BEFORE) == BEFORE
    git(tmp_path, "init", "-q")
    assert version_of(tmp_path, BEFORE) == BEFORE  # there is no commit yet
    (tmp_path / ".git/HEAD").write_bytes(b"\xff\x00")
    assert version_of(tmp_path, BEFORE) == BEFORE


def test_what_was_built_and_archives_say_their_version_themselves(checkout: Path) -> None:
    commit = "1a2b3c4d5e" * 4
    assert version_of(checkout, BEFORE, built="0.3.0") == "0.3.0"
    assert version_of(checkout.parent, BEFORE, archived=commit) == "0.3.0.dev0+g1a2b3c4d5"
    assert version_of(checkout.parent, "0.3.0", archived=commit) == "0.3.0"


def test_git_archive_writes_the_commit(checkout: Path) -> None:
    for name in ("zerotools/version.py", ".gitattributes"):
        (checkout / name).parent.mkdir(exist_ok=True)
        (checkout / name).write_text((ROOT / name).read_text())
    git(checkout, "add", "-A")
    git(checkout, "commit", "-q", "-m", "second")
    archived = git(checkout, "archive", "--format=tar", "HEAD", "zerotools/version.py")
    assert f'ARCHIVED = "{git(checkout, "rev-parse", "HEAD")}"' in archived


def test_the_package_says_the_version() -> None:
    assert zerotools.__version__ == version()
    assert "__version__" in dir(zerotools)


def test_versions_are_ordered_by_their_release() -> None:
    rising = ["0.0.9", "0.1.0", "0.2.0", "0.3.0.dev0+gfff", "0.3.0", "0.3.1", "0.10", "1.0rc1", "1"]
    assert sorted(sorted(rising, key=len), key=version_order) == rising
    assert version_order("0.3.0.dev0+g111111111") == version_order("0.3.0.dev0+g999999999.dirty")
    assert version_order("0.3") == version_order("0.3.0")
    assert version_order("unknown") < version_order("0.0.1")
    assert base_of("0.3.0.dev0+g111111111.dirty") == "0.3.0.dev0"


def test_importing_the_package_reads_no_version() -> None:
    script = "import sys, zerotools; print('zerotools.version' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "False\n"
