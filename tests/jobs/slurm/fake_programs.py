"""Programs with the names of Slurm's, which do what a test says."""

from __future__ import annotations

import os
from pathlib import Path

from zerotools.jobs.slurm.slurm_commands import SlurmCommands

VERSION = 'if [ "$1" = --version ]; then echo slurm 22.05.8; exit 0; fi\n'
LISTED = "4711\\tRUNNING\\tNone\\tzerotools:TOKEN\\t2\\tn[1-2]\\tname with\\ttabs\\n"


def programs(directory: Path, **bodies: str) -> SlurmCommands:
    """Commands that find these shell scripts first, and none of the real ones."""
    bin_dir = directory / "bin"
    bin_dir.mkdir(exist_ok=True)
    bodies = {"sbatch": "cat > $0.script; echo 4711", **bodies}
    for name, body in bodies.items():
        path = bin_dir / name
        path.write_text(f'#!/bin/sh\n{VERSION}echo "$@" >> $0.calls\n{body}\n')
        path.chmod(0o755)
    return SlurmCommands({"PATH": f"{bin_dir}:/usr/bin:/bin", "HOME": os.environ["HOME"]})


def calls(directory: Path, program: str) -> list[str]:
    """The arguments of each call of a program."""
    path = directory / "bin" / f"{program}.calls"
    return path.read_text().splitlines() if path.exists() else []
