"""The digest that shows whether a JSON file of zerotools is unchanged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import xxhash


def tree_digest(tree: Mapping[str, Any]) -> str:
    """Return XXH3 with 128 bits of a tree as JSON, with sorted keys and without spaces, in
    hexadecimal."""
    text = json.dumps(tree, sort_keys=True, separators=(",", ":"))
    return str(xxhash.xxh3_128(text.encode()).hexdigest())
