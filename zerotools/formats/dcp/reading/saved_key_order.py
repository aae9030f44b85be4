"""The order of a model's parameters, which DCP records with the keys of the state dict."""

from __future__ import annotations

from collections.abc import Sequence

from zerotools.core.checkpoint import Checkpoint, Key


def in_saved_order(source: Checkpoint, names: Sequence[str]) -> list[str] | None:
    """`names` in the order of the state dict that was saved; None where it was not recorded."""
    details = source.origin.details
    if not details.get("planner_data"):
        return None
    places = {flat: place for place, flat in enumerate(details["planner_data"])}
    flats = {name: details["dcp_keys"].get(Key(name, "param")) for name in names}
    return sorted(names, key=lambda name: places.get(flats[name], len(places)))
