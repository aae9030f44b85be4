"""Checkpoints of thousands of ranks, in a process that may open few files."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.matrices import FULL
from tests.ops.exports import model, noise, weights_of

FILES = 256 if FULL else 128
RANKS = 2000 if FULL else 2 * FILES


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """In memory where there is room for it: thousands of files are flushed one by one."""
    memory = Path("/dev/shm")
    parent = memory if os.access(memory, os.W_OK) else None
    directory = Path(tempfile.mkdtemp(dir=parent))
    yield directory
    shutil.rmtree(directory)


def zerotools(place: Path, *arguments: str) -> None:
    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, FILES))

    command = [sys.executable, "-m", "zerotools", *arguments, "--workers", "2"]
    done = subprocess.run(
        command, cwd=place, preexec_fn=limit, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_more_ranks_than_files_that_may_be_open(place: Path) -> None:
    weights = {"a": noise(RANKS + 3, 2), "b": noise(60, 70, seed=1)}
    model(place / "model", weights)
    (place / "order").write_text("a\nb\n")
    ranks, fewer = ("--world-size", str(RANKS)), ("--world-size", str(RANKS - 1))
    given = ("--to", "deepspeed", "--stage", "3", "--lr", "0.1", "--order", "order")
    zerotools(place, "convert", "model", "zero", *given, *ranks)
    assert len(list((place / "zero").glob("*/*_optim_states.pt"))) == RANKS
    zerotools(place, "reshard", "zero", "resharded", *fewer)
    zerotools(place, "consolidate", "resharded", "out", "--dtype", "fp32")
    found = weights_of(place / "out")
    assert {name: array.tolist() for name, array in found.items()} == {
        name: array.tolist() for name, array in weights.items()
    }
