"""The record of a running write to an object store (`write_to_store`), as readers see it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from zerotools.core.errors import BadFile, BadRequest
from zerotools.io.files.read_json import read_json

WRITING = ".zerotools-writing.json"
_LARGEST = 2**28


def read_writing(directory: Path) -> dict[str, Any]:
    """Read the record of a running write in `directory`, and check its form.

    Raises:
        BadRequest: the record is damaged, or belongs to another version of zerotools.
    """
    path = directory / WRITING
    try:
        tree: Any = read_json(path, _LARGEST, is_source=False)
    except (OSError, BadFile, ValueError) as error:
        raise BadRequest(
            f"the record of an unfinished output, {path}, cannot be read ({error!s:.200}); remove "
            f"{directory}"
        ) from None
    words = {"run": str, "identity": dict, "files": list, "done": dict}
    is_known = isinstance(tree, dict) and all(
        isinstance(tree.get(word), kind) for word, kind in words.items()
    )
    if not is_known or not all(map(_is_record, tree["done"].values())):
        raise BadRequest(
            f"the record of an unfinished output, {path}, is of another version of zerotools; "
            f"remove {directory}"
        )
    found: dict[str, Any] = tree
    return found


def is_written(directory: Path) -> bool:
    """Return whether the output in `directory` is complete although it still has a record. Such a
    record is not needed any more.
    """
    from zerotools.io.output.output_marker import run_of  # `detect` needs WRITING alone

    try:
        run = read_writing(directory)["run"]
    except BadRequest:
        return False
    return bool(run == run_of(directory))


def _is_record(value: Any) -> bool:
    return isinstance(value, dict) and {"size", "etag", "noted"} <= value.keys()
