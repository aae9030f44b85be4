"""Names of directories and files that identify a checkpoint of Orbax."""

from __future__ import annotations

import re
from pathlib import Path

TREE = "_METADATA"
STEP = "_CHECKPOINT_METADATA"
DATABASE = "manifest.ocdbt"
COMMITTED = "commit_success.txt"
PROCESS = re.compile(r"ocdbt\.process_\d+")
UNFINISHED = ".orbax-checkpoint-tmp"
"""A part of the name of each directory whose save has not finished."""
ITEMS = ("items", "state", "train_state", "default", "params", "model_params")
"""Usual names of the item with the model; the earlier ones are preferred."""
_STEP_NAME = re.compile(r"(?:.*_)?(\d{1,18})")


def step_of(directory: Path) -> int | None:
    """Return the step number in the name of `directory` or of its parent directory, or None."""
    absolute = directory.absolute()
    found = (_STEP_NAME.fullmatch(each.name) for each in (absolute, absolute.parent))
    return next((int(each[1]) for each in found if each is not None), None)


def step_number(name: str) -> int | None:
    """Return the step number if `name` is the name of a step's directory, else None."""
    found = _STEP_NAME.fullmatch(name)
    return None if found is None else int(found[1])
