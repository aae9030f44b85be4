"""The names that identify DeepSpeed's checkpoints, and the difference between the two formats."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from zerotools.io.files.listing import names_if_readable

LATEST = ("latest", "latest_universal")
SIDECAR_NAMES = frozenset({*LATEST, "zero_to_fp32.py", "zero_to_torch.py"})
ZERO, MASTER = "zero", "fp32.pt"
"""A universal checkpoint has `zero/<parameter>/fp32.pt`."""
_FILE = re.compile(r"((bf16_)?zero_pp_rank_\d+_)?mp_rank_\d+_?(model|optim)_states\.pt(-\d+\.\d+)?")
_ONE_FILE = re.compile(r"(mp_rank|expert|layer)_\d+.*_(model|optim)_states\.pt")


def is_deepspeed(path: Path, names: Iterable[str]) -> bool:
    """Return whether `path` is a tag directory, or a save directory that contains one."""
    if any(map(_FILE.fullmatch, names)):
        return True
    inside = (entry for entry in path.iterdir() if entry.is_dir())
    return any(_FILE.fullmatch(name) for entry in inside for name in names_if_readable(entry))


def is_one_file(name: str) -> bool:
    return _ONE_FILE.search(name) is not None


def has_parameter_directories(tag_directory: Path) -> bool:
    zero = tag_directory / ZERO
    return zero.is_dir() and any((entry / MASTER).is_file() for entry in zero.iterdir())
