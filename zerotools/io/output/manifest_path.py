"""The path of the manifest of digests next to a checkpoint: NAME.zerotools.json next to NAME."""

from __future__ import annotations

from pathlib import Path

from zerotools.io.files.open_source import RemotePath

SIDECAR_SUFFIX = ".zerotools.json"


def sidecar_of_path(subject: Path) -> Path:
    """Return the default path of the manifest of `subject`, the directory or file of a checkpoint.

    Links and `.` in the path are resolved, because they may lead to another directory later.
    """
    if isinstance(subject, RemotePath) and subject.is_root:
        return subject / SIDECAR_SUFFIX  # none is written there: it would be in the checkpoint
    whole = subject.resolve() if subject.is_dir() else subject.absolute()
    return whole.with_name(whole.name + SIDECAR_SUFFIX)
