"""A new file under a name that others know in advance.

A user who may write in the directory can put a link there: opening it for writing would empty the
link's target. So an existing entry is removed first, and never opened.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO


def new_text_file(path: Path) -> IO[str]:
    """Return an empty file in UTF-8, open for writing; an existing entry of that name is removed.

    Raises:
        OSError: it cannot be made, or another process makes it at the same time.
    """
    path.unlink(missing_ok=True)
    return path.open("x", encoding="utf-8")
