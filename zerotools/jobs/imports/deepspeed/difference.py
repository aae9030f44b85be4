"""The difference between DeepSpeed's JSON file and its final config, as a unified diff."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from zerotools.jobs.text.document import Document


def difference(document: Document, tree: Mapping[str, Any]) -> Iterator[str]:
    """Yield the diff from the file as written to the final config; empty if they are equal.

    A file in one line, or without a line for each key, is shown reformatted.
    """
    after = _lines(tree)
    before = _lines(document.tree)
    if document.text is not None:
        written = document.text.splitlines()
        if _alike(written, before):
            indent = next((len(x) - len(x.lstrip()) for x in written[1:] if x.strip()), 2)
            before, after = written, _lines(tree, indent or 2)
    name = document.source
    yield from difflib.unified_diff(before, after, name, f"{name} as DeepSpeed has it", lineterm="")


def _lines(tree: Mapping[str, Any], indent: int = 2) -> list[str]:
    return json.dumps(tree, indent=indent, ensure_ascii=False).splitlines()


def _alike(written: list[str], dumped: list[str]) -> bool:
    """Return whether the file has about a line for each key."""
    keys = {line.split(":")[0].strip() for line in dumped if ":" in line}
    same = sum(line.split(":")[0].strip() in keys for line in written)
    return same >= 0.5 * len(keys)
