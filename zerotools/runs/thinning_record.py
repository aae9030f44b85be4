"""The record of the parts that thinning dropped from a checkpoint, so that they do not count as
lost.

    {"schema": "zerotools.thinned/1", "version": "0.2.0", "time": 1790000000.0,
     "keep": "masters", "dropped": ["exp_avg", "exp_avg_sq", "step"]}

A reader accepts that the dropped parts are missing, and a run does not resume from the checkpoint.
Standard library only, because the training process imports this module too.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadFile
from zerotools.io.files.regular_files import read_regular
from zerotools.version import version

THINNED = ".zerotools-thinned.json"
SCHEMA = "zerotools.thinned/1"
WORKSPACE_SUFFIX = ".zerotools-thin"
"""The suffix of the temporary directory next to a checkpoint: `.NAME.zerotools-thin`."""
_LARGEST = 2**20
_LATEST = 253402300799  # the end of the year 9999: `strftime` may fail for later times


@dataclass(frozen=True, slots=True)
class ThinnedRecord:
    """The content of the record of a thinned checkpoint.

    `keep` says what was kept, and `dropped` are the roles of the tensors that were removed. `time`
    is in seconds since 1970, UTC.
    """

    keep: str
    dropped: tuple[str, ...]
    time: float

    def sentence(self) -> str:
        """Return a sentence for the user that says which parts were removed."""
        day = time.strftime("%Y-%m-%d", time.gmtime(self.time))
        return (
            f"it was thinned on {day} ({', '.join(self.dropped)} dropped): training cannot resume "
            "from it"
        )

    def to_json(self) -> str:
        """Return the record as the text of its JSON file."""
        tree = {
            "schema": SCHEMA,
            "version": version(),
            "time": self.time,
            "keep": self.keep,
            "dropped": list(self.dropped),
        }
        return json.dumps(tree, indent=1) + "\n"


def is_thinned(directory: Path) -> bool:
    """Return whether the checkpoint in `directory` was thinned."""
    return (directory / THINNED).is_file()


def read_thinned(directory: Path) -> ThinnedRecord | None:
    """Return the record of how the checkpoint in `directory` was thinned, or None if it was never
    thinned.

    Raises:
        BadFile: the record is damaged.
    """
    path = directory / THINNED
    try:
        tree: Any = json.loads(read_regular(path, _LARGEST, is_source=False))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise BadFile(
            f"{path} cannot be read ({error!s:.200}); copy or download it again"
        ) from None
    names = tree.get("dropped") if isinstance(tree, dict) else None
    if (
        not isinstance(names, list)
        or not all(isinstance(name, str) for name in names)
        or tree.get("schema") != SCHEMA
        or not _is_time(tree.get("time"))
    ):
        raise BadFile(
            f"{path} is not a record of the schema {SCHEMA}, or is damaged; copy or download it "
            "again"
        )
    return ThinnedRecord(str(tree.get("keep")), tuple(names), float(tree["time"]))


def _is_time(found: object) -> bool:
    return isinstance(found, int | float) and 0 <= found <= _LATEST


def workspace_of(path: Path) -> Path:
    """Return the path of the temporary directory, next to the checkpoint `path`, in which its
    thinned copy is made.
    """
    return path.with_name(f".{path.name}{WORKSPACE_SUFFIX}")


def is_workspace(name: str) -> bool:
    """Return whether `name` is the name of a temporary directory that `workspace_of` returns."""
    return name.startswith(".") and name.endswith(WORKSPACE_SUFFIX)
