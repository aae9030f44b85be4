"""The maps that are shipped with zerotools, and the choice of the map for a model."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any

from zerotools.core.errors import BadRequest, Unsupported
from zerotools.core.nearest_word import nearest_of
from zerotools.maps.map_file import SHORT, FamilyMap, read_map, with_parts
from zerotools.maps.transformers_names import MEMORY, PREFIX_MAPS, PrefixMap, prefix_map_of

_FOLDER = "families"
_SUFFIX = ".toml"
_BARE = re.compile(r"[A-Za-z0-9_-]+")
"""A key of TOML that needs no quotes."""
_KEPT = ("L", "D")
"""The words (`$L`) that stay words when a map is printed: those in the names of layers."""


@cache
def shipped_maps() -> Mapping[str, FamilyMap]:
    """Return all maps keyed by name, sorted."""
    folder = files(__package__) / _FOLDER
    found = sorted(each.name for each in folder.iterdir() if each.name.endswith(_SUFFIX))
    maps = (read_map((folder / each).read_bytes(), each) for each in found)
    return {each.name: each for each in maps}


def shipped_map(name: str) -> FamilyMap:
    """Return the shipped map with this name.

    Raises:
        BadRequest: the map does not exist; the message has the most similar name.
        Unsupported: the map has only names and no layouts.
    """
    found = shipped_maps().get(name)
    if found is None:
        names = next((each for each in PREFIX_MAPS if each.name == name), None)
        if names is not None:
            raise _changes_names_alone(f"the map {name}", names)
        near = nearest_of(name, shipped_maps())
        raise BadRequest(
            f"the map {name} does not exist; the nearest is {near} (zerotools maps list)"
        )
    return found


def _changes_names_alone(which: str, names: PrefixMap) -> Unsupported:
    return Unsupported(
        f"{which} changes only names ({names.about}), so there is nothing to show or check; use it "
        f"with --map-to hf or --map-to {MEMORY}"
    )


def map_of_model(config: Mapping[str, Any]) -> FamilyMap:
    """Return the map for the model that config.json describes.

    Raises:
        BadRequest: config.json has no `model_type`.
        Unsupported: no map has this model type; the message names the most similar type.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise BadRequest("config.json has no model_type, so no map can be chosen: pass --map")
    known = {each: family for family in shipped_maps().values() for each in family.model_types}
    if kind in known:
        return known[kind]
    names = prefix_map_of(config)
    if names is not None:
        raise _changes_names_alone(f"the map for models of type {kind}", names)
    near = nearest_of(kind, known)
    raise Unsupported(
        f"no map exists for models of type {kind}; the nearest is {near}, of the map "
        f"{known[near].name}; copy this map (zerotools maps show {known[near].name} --toml), "
        "change the copy, and pass it with --map FILE"
    )


def check_layout(family: FamilyMap, name: str, *, hub: str) -> None:
    """Raise BadRequest if the map has no layout `name`; the message names the most similar
    layout."""
    known = [hub, *family.layouts]
    if name not in known:
        raise BadRequest(
            f"the map {family.name} has no layout {name}; the nearest is "
            f"{nearest_of(name, known)} (it has {', '.join(known)})"
        )


def source_of(name: str) -> str:
    """Return the text of a shipped map with its shared parts inserted, so that a user's copy of the
    text is complete and can be edited."""
    tree, words = with_parts(tomllib.loads(_file(name).read_text("utf-8")))
    short = {word: words[word] for word in _KEPT if word in words}
    plain = {key: value for key, value in tree.items() if not isinstance(value, dict)}
    tables = {key: value for key, value in tree.items() if isinstance(value, dict)}
    return "\n".join(_toml({**plain, SHORT: short, **tables}, short)).lstrip("\n") + "\n"


def _file(name: str) -> Traversable:
    return files(__package__) / _FOLDER / f"{name}{_SUFFIX}"


def _toml(tree: Mapping[str, Any], short: Mapping[str, str], where: str = "") -> Iterator[str]:
    """Yield the TOML lines of a tree of tables, strings, lists of strings, and booleans. `where` is
    the name of the tree's own table.
    """
    plain = {key: value for key, value in tree.items() if not isinstance(value, dict)}
    if where and (plain or not tree):
        yield f"\n[{where}]"
    is_tensor = where.partition(".")[0] not in ("", SHORT)
    for key, value in plain.items():
        known = short if is_tensor else {}
        shown = key if key.isidentifier() else json.dumps(_shortened(key, known))
        yield f"{shown} = {json.dumps(_shortened(value, known), ensure_ascii=False)}"
    for key, value in tree.items():
        if isinstance(value, dict):
            shown = key if _BARE.fullmatch(key) else json.dumps(key)
            yield from _toml(value, short, f"{where}.{shown}" if where else shown)


def _shortened(value: Any, short: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        for word, text in short.items():
            value = value.replace(text, f"${word}")
    return value
