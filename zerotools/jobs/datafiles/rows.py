"""The records of a file, by the kind in its name.

`.csv` and `.tsv` are tables with a header, `.parquet` and `.arrow` (of Hugging Face's `datasets`)
are read by pyarrow, and every other file is JSON.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from zerotools.jobs.datafiles.columnar_files import COLUMNAR, read_columnar
from zerotools.jobs.datafiles.csv_rows import SEPARATORS, read_rows
from zerotools.jobs.datafiles.json_objects import Seen, read_objects


def read_records(
    path: Path,
    budget: int | None = None,
    columns: tuple[str, ...] = (),
    seen: Seen | None = None,
) -> Iterator[tuple[str, Any]]:
    """Yield (place, value) of each record of `path`; a value of JSON need not be an object.

    `budget` is in bytes: the rest is not read. Of columnar files, only `columns` are read if some
    are named and exist. For a JSON file, `seen` gets the number of bytes read.

    Raises:
        BadFile: it cannot be read as the kind in its name; file and line are named.
        BadRequest: this interpreter cannot read such files.
    """
    suffix = path.suffix.lower()
    if suffix in COLUMNAR:
        for number, record in enumerate(read_columnar(path, budget, columns), 1):
            yield f"{path}, row {number}", record
    elif suffix in SEPARATORS:
        for line, row in read_rows(path, budget):
            yield f"{path}, line {line}", row
    else:
        for line, value in read_objects(path, budget, seen):
            yield f"{path}, line {line}", value
