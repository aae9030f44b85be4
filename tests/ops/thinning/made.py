"""Copies of golden checkpoints to be thinned, and what is in a directory."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from zerotools.core.thinning_changes import Keep
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.thinning.carry_out_thinning import Thinned, carry_out_thinning
from zerotools.ops.thinning.thin_plan import prepare_thinning

GOLDEN = Path(__file__).parents[2] / "golden"
BUDGET = MemoryBudget(2**24, workers=1)


def copy_of(case: str, into: Path) -> Path:
    """A copy of the golden checkpoint `case` in the directory `into`."""
    whole = GOLDEN / case
    source = whole / "checkpoint" if (whole / "checkpoint").is_dir() else whole
    shutil.copytree(source, into / "run")
    return into / "run"


def thinned(path: Path, keep: Keep = Keep.MASTERS, *, force: bool = False) -> Thinned:
    """Thin the checkpoint at `path`."""
    return carry_out_thinning(prepare_thinning(path, keep, now=1.8e9), force=force, budget=BUDGET)


def contents(directory: Path) -> dict[str, str]:
    """The digest of every file, by name; hidden ones too."""
    return {
        path.relative_to(directory).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
