"""`scripts/release` in a scratch clone: what it checks, and what a dry run leaves behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.release import __main__ as command
from harness.release.building import git
from harness.release.source_edits import base_in
from zerotools.core.errors import BadRequest
from zerotools.version import BASE

ROOT = Path(__file__).resolve().parents[3]
GOLDEN = "tests/golden/zerotools-0.1.0"
VERSION = BASE.removesuffix(".dev0")

pytestmark = [
    pytest.mark.skipif(not (ROOT / ".git").exists(), reason="needs a checkout"),
    pytest.mark.skipif(".dev" not in BASE, reason="this commit is a release"),
]


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("key") / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True)
    return path


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """The commit that is checked out here, with the few files that a release needs."""
    place = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", "--sparse", ROOT, place], check=True)
    git(place, "checkout", "-q", "-B", "work")
    git(place, "sparse-checkout", "set", "zerotools", GOLDEN)
    git(place, "config", "user.name", "a")
    git(place, "config", "user.email", "a@b")
    return place


def release(clone: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "scripts/release", *arguments],
        cwd=clone,
        env={**os.environ, "PYTHON": sys.executable},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.full
@pytest.mark.dear(20, "builds a wheel and a source distribution twice, and installs both")
def test_a_dry_run_does_everything_and_keeps_nothing(clone: Path, key: Path) -> None:
    before = git(clone, "rev-parse", "HEAD")
    done = release(clone, "--dry-run", "--offline", "--key", str(key), VERSION)
    assert done.returncode == 0, done.stderr
    said = done.stdout.splitlines()
    assert said[1].endswith("files in the wheel, as in the repository")
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    for name in (f"zerotools-{VERSION}-py3-none-any.whl", f"zerotools-{VERSION}.tar.gz"):
        assert f"{name} is installed and works with Python {own}" in said
    assert said[-2:] == [f"signed with {key}", f"dry run: nothing of {VERSION} is kept"]
    assert git(clone, "rev-parse", "HEAD") == before
    assert git(clone, "tag", "--list", f"v{VERSION}") == git(clone, "status", "--porcelain") == ""
    assert not (clone / "dist").exists()


def test_what_went_well_is_taken(clone: Path, tmp_path: Path, key: Path) -> None:
    scratch = tmp_path / "scratch"
    subprocess.run(["git", "clone", "-q", "--sparse", clone, scratch], check=True)
    git(scratch, "sparse-checkout", "set", "zerotools")
    for name, value in (("user.name", "a"), ("user.email", "a@b")):
        git(scratch, "config", name, value)
    before = git(clone, "rev-parse", "HEAD")
    commit = command.commit_release(scratch, VERSION, key)
    command.open_next(scratch, "9.9.0")
    made = tmp_path / f"zerotools-{VERSION}.tar.gz"
    made.write_bytes(b"made")
    command.take(clone, scratch, VERSION, [made])
    assert git(clone, "cat-file", "-t", f"v{VERSION}") == "tag"
    assert "BEGIN SSH SIGNATURE" in git(clone, "cat-file", "tag", f"v{VERSION}")
    assert git(clone, "rev-parse", f"v{VERSION}^{{commit}}") == commit
    assert git(clone, "rev-list", f"{before}..HEAD").split()[1:] == [commit]
    assert base_in(clone) == "9.9.0.dev0"
    assert f'BASE = "{VERSION}"' in git(clone, "show", f"{commit}:zerotools/version.py")
    assert f"version: {VERSION}" in git(clone, "show", f"{commit}:CITATION.cff")
    assert (clone / "dist" / made.name).read_bytes() == b"made"


def test_a_release_that_cannot_begin_is_refused(clone: Path) -> None:
    with pytest.raises(BadRequest, match=r"but 0\.0\.1 needs an earlier \.dev version"):
        command.check_start(clone, "0.0.1", "0.1.0")
    with pytest.raises(BadRequest, match=f"--next {VERSION} is not after {VERSION}"):
        command.check_start(clone, VERSION, VERSION)
    git(clone, "tag", f"v{VERSION}")
    with pytest.raises(BadRequest, match=f"the tag v{VERSION} exists already"):
        command.check_start(clone, VERSION, "9.9.0")
    git(clone, "checkout", "-q", "--detach")
    with pytest.raises(BadRequest, match="no branch is checked out"):
        command.check_start(clone, VERSION, "9.9.0")
    (clone / "odd").touch()
    with pytest.raises(BadRequest, match=r"the tree has changes \(\?\? odd"):
        command.check_start(clone, VERSION, "9.9.0")


def test_an_unsigned_release_is_asked_for(clone: Path) -> None:
    git(clone, "config", "user.signingkey", "")
    done = release(clone, "--dry-run", VERSION)
    assert (done.returncode, "or pass --unsigned" in done.stderr) == (2, True)
    done = release(clone, "--unsigned", "--dry-run", "1.0")
    assert (done.returncode, "write X.Y.Z" in done.stderr) == (2, True)
