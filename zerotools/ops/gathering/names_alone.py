"""What the formats say of the names of all files together, before any of them is fetched.

They look at a directory with empty files of these names: a checkpoint is found by names, and where
the node is left out that has the file by which a format is known, this tells.
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
    """Why files of these names at `destination` are no checkpoint, in one sentence; None: they may
    be one. `texts` are the contents of small files, which may name others."""
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
