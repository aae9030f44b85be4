"""A file that is made anew under a name which others know beforehand.

Whoever may write in the directory can put a link there: opened to be written, it would empty the
file that the link leads to. So what has the name is removed first, and never opened.
"""

from __future__ import annotations

from pathlib import Path
from typing import IO


def new_text_file(path: Path) -> IO[str]:
    """An empty file in UTF-8, open for writing; what had the name before is gone.

    Raises:
        OSError: it cannot be made, or somebody else makes it at the same time.
    """
    path.unlink(missing_ok=True)
    return path.open("x", encoding="utf-8")
