"""Checks the content of a wheel and a source distribution, and their commands after
installation.
"""

from __future__ import annotations

import sys
import sysconfig
import tarfile
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.release.building import SOURCES, git, run
from zerotools.core.errors import BadRequest

GOLDEN = Path("tests/golden/zerotools-0.1.0/step-00000003")
PLACES = {
    "zerotools/": "zerotools/",
    "daemon/zerotoolsd/": "zerotoolsd/",
    "docs/explanation/": "zerotools/pages/explanation/",
    "docs/how-to/": "zerotools/pages/how-to/",
    "docs/reference/": "zerotools/pages/reference/",
    "docs/tutorial/": "zerotools/pages/tutorial/",
    "docs/zh/": "zerotools/pages/zh/",
    "systemd/": "zerotoolsd/units/",
    "daemon/earlier_names/": "zerotoolsd/",
}
"""For each folder of the repository, its place in a wheel."""


def check_files(root: Path, commit: str, wheel: Path, source: Path) -> int:
    """Check that the wheel and the source distribution have exactly the files of the repository.

    Returns the number of files in the wheel.

    Raises:
        BadRequest: a file is missing, or is not in the repository.
    """
    tracked = git(root, "ls-tree", "-r", "--name-only", "-z", commit).rstrip("\0").split("\0")
    with zipfile.ZipFile(wheel) as held:
        names = {name for name in held.namelist() if ".dist-info/" not in name}
    _compare(wheel, names, in_wheel(tracked))
    with tarfile.open(source) as held_source:
        files = (member.name for member in held_source.getmembers() if member.isfile())
        inside = {name.partition("/")[2] for name in files}
    folders = tuple(f"{name}/" for name in SOURCES)
    of_source = {name for name in inside if name.startswith(folders)}
    _compare(source, of_source, {name for name in tracked if name.startswith(folders)})
    return len(names)


def in_wheel(tracked: Iterable[str]) -> set[str]:
    """Return the paths inside a wheel of the files that belong into it; `tracked` are the files in
    git.
    """
    return {
        place + name.removeprefix(folder)
        for name in tracked
        for folder, place in PLACES.items()
        if name.startswith(folder)
    }


def _compare(path: Path, held: set[str], wanted: set[str]) -> None:
    for what, names in (("lacks", wanted - held), ("should not have", held - wanted)):
        if names:
            some = ", ".join(sorted(names)[:5])
            raise BadRequest(f"{path.name} {what} {some} ({len(names)} files)")


@dataclass(frozen=True)
class Environment:
    """A new virtual environment in the directory `place`, made by the interpreter `python`.

    With `offline`, required packages are taken from the running Python. Then `python` must be the
    running Python.
    """

    place: Path
    python: Path
    offline: bool


def try_installed(root: Path, distribution: Path, version: str, new: Environment) -> None:
    """Install the file `distribution` into a new environment, and run the commands of zerotools
    there.

    Raises:
        BadRequest: a command fails, or its output is not as expected.
    """
    place = new.place
    run([new.python, "-I", "-m", "venv", "--without-pip", place])
    python = place / "bin/python"
    options = ["--quiet", "--disable-pip-version-check"]
    if new.offline:
        here = sysconfig.get_path("purelib", vars={"base": str(place), "platbase": str(place)})
        (Path(here) / "around.pth").write_text(sysconfig.get_path("purelib") + "\n", "utf-8")
        options += [
            "--no-deps",
            "--no-index",
            "--no-build-isolation",
            "--no-compile",
            "--ignore-installed",
        ]
    clean = {"PYTHONPATH": "", "PYTHONSAFEPATH": "1"}
    pip: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "--python",
        python,
        "install",
        *options,
        distribution,
    ]
    run(pip, directory=place, environment=clean)
    wanted: Mapping[tuple[str, ...], str] = {
        ("zerotools", "--version"): f"zerotools {version}\n",
        ("zerotoolsd", "--version"): f"zerotoolsd {version}\n",
        ("zerotools", "inspect", str(root / GOLDEN)): "7,088",
        ("zerotoolsd", "--print-unit"): f"ExecStart={place}/bin/zerotoolsd",
        ("zerotools", "help", "install"): "Install\n=======",
    }
    for (program, *arguments), words in wanted.items():
        said = run([place / "bin" / program, *arguments], directory=place, environment=clean)
        if words not in said:
            raise BadRequest(
                f"{distribution.name}: {program} {arguments[0]} does not say {words!r}"
            )
