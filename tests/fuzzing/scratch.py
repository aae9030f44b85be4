"""A directory for what a target writes, in memory where the machine allows it."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from functools import cache
from pathlib import Path

PEERS = os.environ.get("ZEROTOOLS_FUZZ_PEERS") == "1"
_MEMORY = Path("/dev/shm")


@cache
def scratch(name: str) -> Path:
    """An empty directory, which is removed at the end of the process."""
    place = _MEMORY if _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) else None
    path = Path(tempfile.mkdtemp(prefix=f"zerotools-fuzz-{name}-", dir=place))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    return path
