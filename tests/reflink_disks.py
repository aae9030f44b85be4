"""A file system whose files can share blocks, where this process may make and mount one."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BYTES = 320 * 2**20
"""The least that mkfs.xfs takes is 300 MiB. The image is sparse."""


@contextmanager
def mounted_xfs(directory: Path) -> Iterator[Path | None]:
    """An empty XFS on a loop device, mounted below `directory`; None if it cannot be made here."""
    image, place = directory / "image", directory / "disk"
    if shutil.which("mkfs.xfs") is None:
        yield None
        return
    with image.open("wb") as file:
        file.truncate(BYTES)
    place.mkdir()
    commands = (
        ("mkfs.xfs", "-q", "-m", "reflink=1", image),
        ("mount", "-o", "loop", image, place),
    )
    for command in commands:
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            yield None
            return
    try:
        yield place
    finally:
        subprocess.run(("umount", place), capture_output=True, check=True)
