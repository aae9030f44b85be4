"""The locks that let the daemons of several users share GPUs."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from zerotools.jobs.doctor.finding import DoctorFinding, ok, warning

DIRECTORY = Path("/run/zerotools/gpus")
"""The daemon's default directory."""


def look_at_gpu_locks(
    told: Mapping[str, Any] | None, directory: Path = DIRECTORY
) -> Iterator[DoctorFinding]:
    """Check the daemon's record `told` of the locks; None: it does not run, or is older, and
    `directory` is checked."""
    what = "GPUs of several users"
    if told is not None:
        place, why = str(told.get("directory")), told.get("trouble")
    else:
        place, why = str(directory), _why_not(directory)
    if why is None:
        yield ok(what, f"are shared by locks in {place}")
        return
    yield warning(
        what,
        f"two daemons may give one GPU to two jobs: {why}; a daemon then sees the use of "
        "other daemons only in the memory that NVML shows",
        f"as root: install -d -m 1777 {place or directory}, and for the next boot zerotoolsd "
        "--print-unit tmpfiles > /etc/tmpfiles.d/zerotools.conf (zerotools help share-gpus)",
    )


def _why_not(directory: Path) -> str | None:
    try:
        found = directory.lstat()
    except OSError as error:
        return f"{directory}: {error.strerror}"
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != 0:
        return f"{directory} is not a directory of root"
    mode = stat.S_IMODE(found.st_mode)
    return None if mode == 0o1777 else f"{directory} has mode {mode:04o}, and must have 1777"
