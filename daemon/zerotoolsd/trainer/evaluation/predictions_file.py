"""The file of the texts that an evaluation generated."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from zerotools.io.files.new_file import new_text_file
from zerotools.io.files.open_files import sync_directory


def write_rows(path: Path, rows: Iterable[Mapping[str, Any]]) -> str | None:
    """Write `rows` as lines, completely or not at all; return why it failed, because training
    continues."""
    draft = path.with_name(f".{path.name}.draft")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with new_text_file(draft) as file:
            file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
        sync_directory(path.parent)
    except OSError as error:
        return f"{error.filename or path}: {error.strerror}"
    return None
