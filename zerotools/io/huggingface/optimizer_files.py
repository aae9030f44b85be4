"""The optimizer in files next to a model, in the form of the Trainer and accelerate."""

from __future__ import annotations

import re
from pathlib import Path

_OPTIMIZER = re.compile(r"optimizer(_\d+)?\.(pt|bin)")


def optimizer_files(directory: Path) -> frozenset[str]:
    """Return the names of the files in `directory` that hold the state of an optimizer."""
    names = (entry.name for entry in directory.iterdir() if entry.is_file())
    return frozenset(name for name in names if _OPTIMIZER.fullmatch(name))
