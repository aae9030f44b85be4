"""Makes a release: `python -m harness.release`, which `scripts/release` runs."""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from harness.release import interpreters, source_edits
from harness.release.building import build_twice, git, run
from harness.release.inspecting import Environment, check_files, try_installed
from harness.release.signing import find_key, sign, write_sums
from zerotools.core.errors import BadRequest
from zerotools.version import version_order


def main(arguments: Sequence[str] | None = None) -> int:
    """Make a release of the repository that contains the working directory."""
    options = make_parser().parse_args(arguments)
    try:
        release(Path(git(Path(), "rev-parse", "--show-toplevel")), options)
    except BadRequest as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def make_parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    parser = argparse.ArgumentParser(
        prog="scripts/release",
        description="Check, build, sign and tag a release. Nothing is uploaded or pushed.",
    )
    parser.add_argument("version", metavar="VERSION", help="X.Y.Z")
    parser.add_argument(
        "--dry-run", action="store_true", help="make and test the release, and keep none of it"
    )
    parser.add_argument(
        "--next", metavar="VERSION", help="version of the next release  [default: X.Y+1.0]"
    )
    key = parser.add_mutually_exclusive_group()
    key.add_argument(
        "--key", type=Path, help="the SSH key for signatures  [default: git's user.signingkey]"
    )
    key.add_argument("--unsigned", action="store_true", help="sign nothing")
    parser.add_argument(
        "--offline", action="store_true", help="test the files with the packages of this Python"
    )
    parser.add_argument(
        "--pythons",
        nargs="+",
        metavar="X.Y",
        help="Python versions for the tests of the files  [default: all that are supported]",
    )
    return parser


def release(root: Path, options: argparse.Namespace) -> None:
    """Make the release `options.version` of the repository `root`, in a temporary clone.

    Unless this is a dry run, fetch the result at the end.
    """
    version, following = options.version, options.next
    source_edits.check_version(version)
    following = following or source_edits.next_of(version)
    source_edits.check_version(following)
    key = None if options.unsigned else find_key(root, options.key)
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    wanted = options.pythons or ([own] if options.offline else interpreters.supported(root))
    if options.offline and wanted != [own]:
        raise BadRequest(f"--offline tries the packages of this Python, which is {own} alone")
    pythons = interpreters.find_all(wanted)
    check_start(root, version, following)
    with tempfile.TemporaryDirectory(prefix="zerotools-release-") as directory:
        scratch = Path(directory)
        clone, out = scratch / "clone", scratch / "dist"
        out.mkdir()
        run(["git", "clone", "--quiet", "--sparse", root, clone])
        git(clone, "sparse-checkout", "set", "zerotools")
        for name in ("user.name", "user.email"):
            git(clone, "config", name, git(root, "config", name))
        commit = commit_release(clone, version, key)
        say(f"built twice from {commit[:9]}")
        wheel, source = build_twice(clone, commit, out, scratch)
        names = [path.name for path in (wheel, source)]
        if names != [f"zerotools-{version}-py3-none-any.whl", f"zerotools-{version}.tar.gz"]:
            raise BadRequest(f"{' and '.join(names)} are not of version {version}")
        say(f"{check_files(clone, commit, wheel, source)} files in the wheel, as in the repository")
        run([sys.executable, "-m", "twine", "check", "--strict", wheel, source])
        for path in (wheel, source):
            for number, python in pythons.items():
                place = scratch / f"venv-{path.suffix[1:]}-{number}"
                try_installed(root, path, version, Environment(place, python, options.offline))
                say(f"{path.name} is installed and works with Python {number}")
        files = [wheel, source]
        files.append(write_sums(files, out))
        say("nothing is signed" if key is None else f"signed with {key}")
        files += [] if key is None else sign(files, key)
        open_next(clone, following)
        if options.dry_run:
            say(f"dry run: nothing of {version} is kept")
            return
        take(root, clone, version, files)


def check_start(root: Path, version: str, following: str) -> None:
    """Check that a release can begin.

    Raises:
        BadRequest: a release cannot begin. The message is the reason.
    """
    base = source_edits.base_in(root)
    if ".dev" not in base or version_order(base) >= version_order(version):
        raise BadRequest(
            f"the source has version {base}, but {version} needs an earlier .dev version"
        )
    if version_order(following) <= version_order(version):
        raise BadRequest(f"--next {following} is not after {version}; name a later version")
    if changed := git(root, "status", "--porcelain"):
        raise BadRequest(
            f"the tree has changes ({changed.splitlines()[0].strip()}); commit or remove them"
        )
    if not git(root, "branch", "--show-current"):
        raise BadRequest("no branch is checked out; check out the branch to release")
    if git(root, "tag", "--list", f"v{version}"):
        raise BadRequest(f"the tag v{version} exists already; name a later version")


def commit_release(clone: Path, version: str, key: Path | None) -> str:
    """Make the commit and the annotated tag of the release in `clone`; return the commit."""
    today = datetime.fromtimestamp(time.time(), UTC).date()
    source_edits.set_base(clone, version)
    source_edits.date_changelog(clone, version, today)
    source_edits.date_citation(clone, version, today)
    git(clone, "commit", "--quiet", "-am", f"release: {version}")
    signing = [] if key is None else ["-c", "gpg.format=ssh", "-c", f"user.signingkey={key}"]
    how = "-a" if key is None else "-s"
    git(clone, *signing, "tag", how, "-m", f"zerotools {version}", f"v{version}")
    return git(clone, "rev-parse", "HEAD")


def open_next(clone: Path, version: str) -> None:
    """Make the commit that follows a release in `clone`. It sets the next development version."""
    source_edits.set_base(clone, f"{version}.dev0")
    source_edits.open_changelog(clone, version)
    git(clone, "commit", "--quiet", "-am", f"release: begin {version}")
    if changed := git(clone, "status", "--porcelain"):
        raise BadRequest(f"the release left changes in the tree: {changed}")


def take(root: Path, clone: Path, version: str, files: Sequence[Path]) -> None:
    """Fetch the commits and the tag from `clone`, and copy the files into `dist`.

    Print the commands that upload them.
    """
    branch = git(root, "branch", "--show-current")
    out = root / "dist"
    out.mkdir(exist_ok=True)
    for path in files:
        shutil.copy2(path, out / path.name)
    git(root, "fetch", "--quiet", str(clone), "tag", f"v{version}")
    git(root, "pull", "--quiet", "--ff-only", str(clone), branch)
    uploaded = " ".join(f"dist/{path.name}" for path in files if path.suffix in (".whl", ".gz"))
    say(f"v{version} is tagged, and its files are in {out}; nothing was uploaded.")
    say("The remaining steps, by hand:")
    print(f"git push origin {branch} v{version}")
    print(f"twine upload {uploaded}")
    print(f"pip download --no-deps zerotools=={version}  # and compare it with SHA256SUMS")
    say(
        "After the first upload, docs/how-to/install.md can install by name, not only by directory."
    )


def say(text: str) -> None:
    """Print a line about the progress."""
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
