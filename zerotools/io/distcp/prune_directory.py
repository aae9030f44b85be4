"""Removes values from a DCP directory: the files to remove, and new versions of other files.

The items that are not removed are copied unchanged, one after another. The new `.metadata` is the
saved `.metadata` without the removed values, and with the new positions of the items. Its other
contents do not change.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from zerotools.core.checkpoint import Opaque
from zerotools.core.target import CarriedBytes, FilePlan
from zerotools.io.distcp.dcp_directory import metadata_names
from zerotools.io.distcp.metadata import LARGEST_METADATA, Item, read_metadata
from zerotools.io.files.regular_files import read_regular
from zerotools.io.output.files_without_tensors import file_of_bytes
from zerotools.io.torchzip.pickle_writer import dumps
from zerotools.io.torchzip.unpickle import loads


@dataclass(frozen=True)
class PrunedDirectory:
    """The names of files to remove (`removed`), and the plans of files to write again (`rewritten`,
    keyed by name). Names are relative to the directory.
    """

    removed: frozenset[str] = frozenset()
    rewritten: Mapping[str, FilePlan] = field(default_factory=dict)


def plan_pruned(directory: Path, dropped: Container[str]) -> PrunedDirectory:
    """Plan to remove the values with the flat keys `dropped` from the DCP in `directory`.

    Raises:
        BadFile: `.metadata` is damaged.
    """
    trees = {name: _load(directory / name) for name in metadata_names(directory)}
    every: dict[str, list[Item]] = {}
    kept: dict[str, list[Item]] = {}
    lives: set[str] = set()
    for name, tree in trees.items():
        for key, item in _items(tree):
            every.setdefault(item.file, []).append(item)
            if key not in dropped:
                kept.setdefault(item.file, []).append(item)
                lives.add(name)
    changed = {file for file, items in every.items() if len(kept.get(file, ())) < len(items)}
    if not changed:
        return PrunedDirectory()
    if not kept:
        return PrunedDirectory(frozenset((*trees, *every)))
    moves: dict[Item, int] = {}
    plans = {
        file: _file(directory / file, kept[file], moves) for file in sorted(changed) if file in kept
    }
    for name in sorted(lives):
        plans[name] = file_of_bytes(dumps(_metadata(trees[name], dropped, moves)))
    gone = {file for file in changed if file not in kept} | (trees.keys() - lives)
    return PrunedDirectory(frozenset(gone), plans)


def _load(path: Path) -> Any:
    read_metadata(path)  # checks what the functions below need
    return loads(read_regular(path, LARGEST_METADATA), source=path)


def _items(tree: Any) -> Iterator[tuple[str, Item]]:
    """Yield (flat key, item) of every value and chunk in the pickle `tree` of `.metadata`, empty
    chunks included.
    """
    for index, info in _state(tree)["storage_data"].items():
        yield _state(index)["fqn"], _item(info)


def _item(info: Any) -> Item:
    at = _state(info)
    return Item(at["relative_path"], at["offset"], at["length"])


def _file(path: Path, items: list[Item], moves: dict[Item, int]) -> FilePlan:
    """Return the plan of a data file that has only `items`, and record the new byte offset of each
    item in `moves`. An item that several tied tensors share is copied once."""
    carried: list[CarriedBytes] = []
    at = 0
    for item in sorted(set(items), key=lambda each: (each.offset, each.length)):
        moves[item] = at
        last = carried[-1] if carried else None
        if last is not None and last.source_offset + last.length == item.offset:
            carried[-1] = replace(last, length=last.length + item.length)
        else:
            carried.append(CarriedBytes(at, path, item.offset, item.length))
        at += item.length
    return FilePlan(at, carried=carried)


def _metadata(tree: Any, dropped: Container[str], moves: Mapping[Item, int]) -> Opaque:
    """Return `.metadata` without the values in `dropped`. `tree` was checked when it was read."""
    saved = dict(_state(tree))
    for table in ("state_dict_metadata", "planner_data"):
        if isinstance(saved.get(table), dict):
            saved[table] = {key: each for key, each in saved[table].items() if key not in dropped}
    saved["storage_data"] = dict(_stored(saved["storage_data"], dropped, moves))
    return _with_state(tree, saved)


def _stored(
    stored: Mapping[Any, Any], dropped: Container[str], moves: Mapping[Item, int]
) -> Iterator[tuple[Any, Any]]:
    for index, info in stored.items():
        if _state(index)["fqn"] not in dropped:
            item = _item(info)
            offset = moves.get(item, item.offset)
            yield index, _with_state(info, {**_state(info), "offset": offset})


def _state(value: Any) -> Mapping[str, Any]:
    """Return the attributes of a pickled object.

    The state of a frozen or slotted dataclass is a tuple with the attributes in second place.
    """
    state = value.state
    found: Mapping[str, Any] = state[1] if isinstance(state, tuple) else state
    return found


def _with_state(value: Opaque, attributes: Mapping[str, Any]) -> Opaque:
    whole = (None, dict(attributes)) if isinstance(value.state, tuple) else dict(attributes)
    return replace(value, state=whole)
