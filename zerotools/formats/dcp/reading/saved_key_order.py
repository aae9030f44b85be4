"""The order of a model's parameters, which DCP records with the keys of the state dict."""

from __future__ import annotations

from collections.abc import Sequence

from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.formats.dcp.native import native_of


def in_saved_order(source: Checkpoint, names: Sequence[str]) -> list[str] | None:
    """`names` in the order of the state dict that was saved; None where it was not recorded."""
    native = native_of(source)
    if not native.paths:
        return None
    places = {flat: place for place, flat in enumerate(native.paths)}
    flats = {name: native.flat_keys.get(Key(name, "param"), "") for name in names}
    return sorted(names, key=lambda name: places.get(flats[name], len(places)))
