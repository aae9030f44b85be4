"""Which checkpoint of a program's own a job is resumed from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zerotools.core.errors import ZerotoolsError


def newest_undamaged(paths: list[str]) -> dict[str, Any]:
    """Find the first of `paths` that is not damaged. May wait for a file system that hangs.

    Returns its `path`, or None, and then `why` the first one is not taken. Raises OSError.
    """
    from zerotools.ops.inspection.completeness import damages  # readers of every format

    why: str | None = None
    for path in paths:
        try:
            found = next(damages(Path(path)), None)
        except (FileNotFoundError, NotADirectoryError):
            found = f"{path} is not there any more"
        except ZerotoolsError as error:
            found = str(error)
        if found is None:
            return {"path": path, "why": None}
        why = why or found
    return {"path": None, "why": why}
