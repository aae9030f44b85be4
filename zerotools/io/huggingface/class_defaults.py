"""config.json as transformers reads it: missing keys have the values of the config class of its
`model_type`.

The values are in class_defaults.json, which scripts/class_defaults.py writes from the classes of
transformers, for the types of models with shapes that zerotools knows.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_suffix(".json")


def flat_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return config.json with the keys of its language model at the top."""
    text = config.get("text_config")
    return {**config, **text} if isinstance(text, Mapping) else dict(config)


def full_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same as `flat_config`, with the class's values for missing keys, and each value
    under all names that the class knows for it. Keys that the class does not know stay unchanged.
    """
    given = flat_config(config)
    known = _class_of(given.get("model_type"))
    if known is None:
        return given
    values, names = known["values"], known["names"]
    found = {**values, **given}
    for name, other in names.items():
        # transformers sets fields first, so the name that is not a field wins.
        field, more = (name, other) if name in values else (other, name)
        found[name] = found[other] = given[more] if more in given else found[field]
    return found


def class_keys(model_type: str) -> frozenset[str]:
    """Return the keys that the class of a type knows; none of a type that the table lacks."""
    known = _class_of(model_type)
    if known is None:
        return frozenset()
    return frozenset({*known["values"], *known["names"], *known["names"].values()})


def _class_of(model_type: object) -> dict[str, Any] | None:
    return _table().get(model_type) if isinstance(model_type, str) else None


@cache
def _table() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(TABLE.read_text("utf-8"))
    return found
