"""The child process of `disk_reader`: reads directories of users, where a file system may hang.

It writes `{}` when it is ready, and then one JSON object on stdout for every request line on stdin.
It ends at the end of its input.

    {"disk": "/data/runs"}         -> {"at": "/data", "total_bytes": ..., "free_bytes": ...,
                                       "is_read_only": false}, or {"why": "..."}
    {"saved": ["/data/step-1"]}    -> {"saved": [{"time": 1.0, "is_thinned": false}, null]}
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[4]))

from zerotools.runs.thinning_record import is_thinned


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return the response to one request. If the system reports an error, the response has the
    reason under `why`.
    """
    try:
        if "disk" in question:
            return disk_at(Path(question["disk"]))
        return {"saved": [saved_at(Path(path)) for path in question["saved"]]}
    except (OSError, ValueError) as error:  # a name that no file can have
        return {"why": getattr(error, "strerror", None) or str(error)}


def disk_at(path: Path) -> dict[str, Any]:
    """Return the file system of `path`, which need not exist yet. `at` is the mount point."""
    there = next(each for each in (path, *path.parents) if each.exists()).resolve()
    device, at = there.stat().st_dev, there
    while at != at.parent and at.parent.stat().st_dev == device:
        at = at.parent
    found = os.statvfs(there)
    return {
        "at": str(at),
        "total_bytes": found.f_blocks * found.f_frsize,
        "free_bytes": found.f_bavail * found.f_frsize,
        "is_read_only": bool(found.f_flag & os.ST_RDONLY),
    }


def saved_at(path: Path) -> dict[str, Any] | None:
    """Return when the directory was last written, in seconds since 1970, and whether it was
    thinned. Return None if it does not exist.
    """
    try:
        return {"time": path.stat().st_mtime, "is_thinned": is_thinned(path)}
    except (FileNotFoundError, NotADirectoryError):
        return None


def main() -> None:
    """Answer requests until stdin ends."""
    sys.stdout.write("{}\n")
    sys.stdout.flush()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(json.loads(line))) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
