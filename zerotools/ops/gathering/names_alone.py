"""A check by all file names together, before any file is fetched.

The formats examine a directory with empty files of these names: a checkpoint is recognised by
names. If the node with the file that identifies a format is missing, this shows it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from zerotools.core.errors import BadFile, BadRequest
from zerotools.formats import FORMATS, FormatTable, detect


def doubt(
    names: Iterable[str], texts: Mapping[str, str], destination: Path, table: FormatTable = FORMATS
) -> str | None:
    """Return the reason why files of these names at `destination` are not a checkpoint, in one
    sentence; None: they may be one. `texts` are the contents of small files, which may name others.
    """
    with tempfile.TemporaryDirectory(prefix="zerotools-names-") as made:
        root = Path(made) / "checkpoint"
        for name in names:
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(texts.get(name, ""))
        try:
            detect(root, table=table)
        except (BadFile, BadRequest) as error:
            return str(error).replace(str(root), str(destination))
    return None
