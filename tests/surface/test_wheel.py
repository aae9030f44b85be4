"""A wheel is built, and what is installed from it works without the source beside it."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import zerotools
from tests.golden_files import JOB
from zerotools.cli.commands.help import KINDS
from zerotools.version import BASE

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out), str(ROOT))
    [built] = out.glob("*.whl")
    return built


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_file_of_the_packages_is_in_the_wheel(wheel: Path) -> None:
    held = set(zipfile.ZipFile(wheel).namelist())
    wanted = {
        path.relative_to(folder).as_posix()
        for folder in (ROOT, ROOT / "daemon")
        for package in ("zerotools", "zerotoolsd")
        for path in (folder / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    wanted |= {
        f"{place}/{path.relative_to(folder).as_posix()}"
        for folder, place in (
            *((ROOT / "docs" / kind, f"zerotools/pages/{kind}") for kind in (*KINDS, "zh")),
            (ROOT / "systemd", "zerotoolsd/units"),
            (ROOT / "daemon/earlier_names", "zerotoolsd"),
        )
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert wanted <= held
    assert not [name for name in held if name.startswith(("tests", "benchmarks", "harness"))]
    version = zerotools.__version__
    built = wheel.name.removeprefix("zerotools-").removesuffix("-py3-none-any.whl")
    assert built in (version, f"{version}.dirty", BASE)  # BASE alone of a tagged release


def test_programs_answer_under_the_names_that_earlier_versions_started(
    wheel: Path, tmp_path: Path
) -> None:
    site = tmp_path / "site"
    pip("install", "--no-deps", "--no-compile", "--target", str(site), str(wheel))
    environment = {**os.environ, "PYTHONPATH": str(site)}

    def failed(*words: str) -> str:
        command = [sys.executable, "-P", *words]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode != 0
        return done.stderr

    for earlier, now in (
        ("exporting", "export"),
        ("mirroring", "mirror"),
        ("thinning", "thin"),
        ("finder/entry", "checkpoint_finder/entry"),
        ("adopted/entry", "pid_watcher/entry"),
    ):
        assert f"children/{now}.py" in failed(str(site / f"zerotoolsd/{earlier}.py"))
    for name in ("batch", "node"):
        assert f"slurm/runner/{name}.py" in failed("-m", f"zerotoolsd.allocation.{name}")


def test_what_is_installed_runs(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    pip("install", "--no-deps", "--no-compile", "--target", str(site), str(wheel))
    environment = {**os.environ, "PYTHONPATH": str(site)}

    def said(*command: str) -> str:
        return subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout

    where = "import zerotools, zerotoolsd; print(zerotools.__file__, zerotoolsd.__file__)"
    assert said(sys.executable, "-P", "-c", where).count(str(site)) == 2
    assert said(str(site / "bin" / "zerotools"), "--version").startswith("zerotools ")
    assert "--state-dir" in said(str(site / "bin" / "zerotoolsd"), "--help")
    built = said(str(site / "bin" / "zerotools"), "--version").split()[1]
    assert said(str(site / "bin" / "zerotoolsd"), "--version") == f"zerotoolsd {built}\n"
    assert wheel.name.startswith(f"zerotools-{built}-")
    program = f"ExecStart={site}/bin/zerotoolsd\n"
    assert program in said(str(site / "bin" / "zerotoolsd"), "--print-unit", "user")
    assert said(str(site / "bin" / "zerotools"), "help", "numa").startswith("Keep ranks next to")
    assert "7,088" in said(str(site / "bin" / "zerotools"), "inspect", str(JOB))
