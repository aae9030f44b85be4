"""A rank needs nothing of zerotools in its interpreter, and only torch, transformers and what these
need (numpy) besides."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness.launching import ENTRY
from zerotoolsd.trainer.entry import PackageFinder, zerotools_folder
from zerotoolsd.trainer.rank.rank_errors import EXIT_BAD_JOB

BARE = [sys.executable, "-I", "-S"]  # no site-packages, no PYTHONPATH
STDLIB_ONLY = (
    "zerotools.jobs.jobfile.parse",
    "zerotools.runs.find_job_checkpoints",
    "zerotools.io.distcp.metadata",
    "zerotools.runs.manifest",
    "zerotoolsd.trainer.engine.learning_rate",
    "zerotoolsd.trainer.run_rank",
    "zerotoolsd.trainer.engine.learning_rate",
)


def test_a_bare_interpreter_imports_all_but_the_torch_part() -> None:
    imports = "; ".join(f"import {name}" for name in STDLIB_ONLY)
    program = (
        f"import runpy; runpy.run_path({str(ENTRY)!r})['make_importable'](); {imports}; "
        "import json, sys; print(json.dumps([sys.path, zerotools.__file__]))"
    )
    done = subprocess.run([*BARE, "-c", program], capture_output=True, text=True, check=True)
    path, file = json.loads(done.stdout)
    root = ENTRY.parents[3]
    assert not any(Path(entry).is_relative_to(root) for entry in path)
    assert file == str(root / "zerotools" / "__init__.py")


def test_an_interpreter_without_torch_is_named_with_what_to_install(tmp_path: Path) -> None:
    done = subprocess.run(
        [*BARE, str(ENTRY), "--run-dir", str(tmp_path)],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == EXIT_BAD_JOB
    assert f"{sys.executable} has no torch" in done.stdout
    # Without its site-packages, the interpreter has no pip either.
    assert re.search(r"uv pip install --python \S+ 'torch>=2.8' 'transformers>=5.1'", done.stdout)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("daemon", ["site-packages/zerotoolsd", "checkout/daemon/zerotoolsd"])
def test_zerotools_is_beside_the_daemon_or_a_floor_up(tmp_path: Path, daemon: str) -> None:
    folder = tmp_path / daemon.split("/")[0] / "zerotools"
    folder.mkdir(parents=True)
    (folder / "__init__.py").touch()
    assert zerotools_folder(tmp_path / daemon) == folder


def test_without_zerotools_nearby_the_place_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="package zerotools is missing next to"):
        zerotools_folder(tmp_path / "a" / "zerotoolsd")


def test_the_finder_knows_two_names_only(tmp_path: Path) -> None:
    finder = PackageFinder({"zerotools": tmp_path})
    assert finder.find_spec("json") is None
    assert finder.find_spec("zerotools.core") is None
    spec = finder.find_spec("zerotools")
    assert spec is not None
    assert spec.submodule_search_locations == [str(tmp_path)]
