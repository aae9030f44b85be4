"""The command, in the short form that a CPU can run."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from harness.gpu.__main__ import main
from harness.gpu.looks import CHECKS
from harness.gpu.table import LINES, LOG, MEMORY, TABLE
from tests.matrices import FULL

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs" / "contributing" / "run-on-a-gpu.md"
LARGEST = 64 << 20
SHORT = ["versions", "NVML answers", *(["a spinning kernel"] if FULL else [])]
"""Of those that a CPU can do; `test_rows` runs one that computes. The others, and one of a daemon
with ranks, are of the full matrices."""
MISSING = {"weights in nf4", "DeepSpeed", "accelerate's config file"}
"""Checks that need a package which may not be installed."""


def rows_of(out: Path) -> dict[str, str]:
    lines = (out / LINES).read_text().splitlines()
    return {row["name"]: row["state"] for row in map(json.loads, lines)}


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="it is an archive already")
def test_the_tree_that_is_taken_to_a_gpu_is_small_and_says_what_it_needs(tmp_path: Path) -> None:
    command = re.search(r"^ *git archive --output=(\S+).*$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert command is not None
    archive = tmp_path / command[1]
    words = shlex.split(command[0].replace(command[1], str(archive)))
    subprocess.run(words, cwd=ROOT, check=True)
    with tarfile.open(archive) as tar:
        assert sum(member.size for member in tar) < LARGEST
        assert not [name for name in tar.getnames() if name.startswith("tests/golden/")]
        tar.extractall(tmp_path / "tree", filter="data")
    # In an interpreter without packages: -I sees none of them, and -c adds the tree.
    bare = "import sys; sys.path.insert(0, '.'); from harness.gpu.__main__ import main; main()"
    words = [sys.executable, "-I", "-S", "-c", bare, "--device", "cpu", "--out", str(tmp_path)]
    done = subprocess.run(words, cwd=tmp_path / "tree", check=True, capture_output=True, text=True)
    assert done.stdout.startswith("packages | packages that every check needs | No module named")
    assert done.stdout.splitlines()[-1].startswith("ran 1, failed 1, late 0, skipped 0")


def test_an_unknown_check_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--out", str(tmp_path), "--only", "version"])
    assert "--only: no check 'version'; there are versions, " in capsys.readouterr().err


def test_checks_are_run_in_the_order_in_which_they_are_named(tmp_path: Path) -> None:
    names = ["speed at stage 3", "attention kernels", "NVML answers"]
    assert main(["--device", "cpu", "--out", str(tmp_path), "--only", *names]) == 0
    assert rows_of(tmp_path) == dict.fromkeys(names, "skip")
    assert list(rows_of(tmp_path)) == names


def test_a_run_without_time_for_a_check_has_not_passed(tmp_path: Path) -> None:
    options = ["--device", "cpu", "--budget", "1", "--out", str(tmp_path)]
    assert main([*options, "--only", "versions"]) == 1
    assert rows_of(tmp_path) == {"versions": "late"}


@pytest.mark.torch
@pytest.mark.dear(20, "a check of a daemon")
def test_the_short_form_on_a_cpu(tmp_path: Path) -> None:
    assert (
        main(["--device", "cpu", "--budget", "240", "--out", str(tmp_path), "--only", *SHORT]) == 0
    )
    found = rows_of(tmp_path)
    assert found == {**dict.fromkeys(SHORT, "ok"), "NVML answers": "skip"}
    assert {path.name for path in tmp_path.iterdir()} == {TABLE, LINES, LOG, MEMORY}
    last = (tmp_path / TABLE).read_text().splitlines()[-1]
    assert last.startswith(f"ran {len(SHORT) - 1}, failed 0, late 0, skipped 1, torch ")


@pytest.mark.torch
@pytest.mark.full
@pytest.mark.skipif(not FULL, reason="of the full matrices")
@pytest.mark.dear(600, "every check that a CPU can do")
def test_everything_that_a_cpu_can_do(tmp_path: Path) -> None:
    assert main(["--device", "cpu", "--budget", "3600", "--out", str(tmp_path)]) == 0
    on_cpu = {name for name, check in CHECKS.items() if check.not_on_cpu is None}
    found = rows_of(tmp_path)
    assert found.keys() == CHECKS.keys()
    assert {name for name in on_cpu if found[name] == "skip"} <= MISSING
