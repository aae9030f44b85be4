"""Finds the files of a directory in a store that cannot list it, by requesting known names.

    .zerotools-output.json          names every file of an output of zerotools
    MANIFEST.json                   names every file of a checkpoint of a job
    model.safetensors.index.json    names the shards of a model
    model.safetensors               a model in one file

The usual files of a model, such as config.json, are requested as well.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from zerotools.core.errors import BadFile
from zerotools.io.files.filenames import stays_below_root
from zerotools.io.stores.far_store import FarObject, FarStore

_MARKER, _MANIFEST = ".zerotools-output.json", "MANIFEST.json"
_INDEX, _SOLE = "model.safetensors.index.json", "model.safetensors"
_ADAPTER = ("adapter_model.safetensors", "adapter_config.json")
_OF_MODELS = (
    "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
    "special_tokens_map.json", "tokenizer.model", "vocab.json", "merges.txt", "added_tokens.json",
    "chat_template.jinja", "preprocessor_config.json", "processor_config.json",
)  # fmt: skip
_LARGEST_INDEX = 2**28
_SIDE_BY_SIDE = 16


def indexed_files(store: FarStore, directory: str) -> list[FarObject]:
    """Return the files that an index in `directory` names and that exist; [] without an index.

    Raises:
        BadFile: an index is too large, or is not JSON.
    """
    start = f"{directory}/" if directory else ""
    names: dict[str, None] = {}
    for index, named in ((_MARKER, _files), (_MANIFEST, _files), (_INDEX, _shards)):
        found = store.head(start + index)
        if found is not None:
            names |= dict.fromkeys([index, *named(_tree(store, found))])
            break
    else:
        sole = [name for name in (_SOLE, _ADAPTER[0]) if store.head(start + name) is not None]
        if not sole:
            return []
        names |= dict.fromkeys((*sole, *_ADAPTER))
    wanted = [*dict.fromkeys([*names, *_OF_MODELS])]
    with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
        heads = pool.map(lambda name: store.head(start + name), wanted)
        return [each for each in heads if each is not None]


def _tree(store: FarStore, found: FarObject) -> Any:
    url = f"{store.url}/{found.key}"
    if found.size > _LARGEST_INDEX:
        raise BadFile(f"{url} has {found.size} bytes, too many for an index")
    try:
        return json.loads(bytes(store.get(found, 0, found.size)))
    except (ValueError, RecursionError):
        raise BadFile(f"{url} is not JSON") from None


def _files(tree: Any) -> list[str]:
    """Return the names in a marker or a manifest."""
    return _safe(tree.get("files") if isinstance(tree, dict) else None)


def _shards(tree: Any) -> list[str]:
    """Return the files that an index of safetensors names."""
    places = tree.get("weight_map") if isinstance(tree, dict) else None
    return _safe(places.values() if isinstance(places, dict) else None)


def _safe(names: Any) -> list[str]:
    return [name for name in names or () if isinstance(name, str) and stays_below_root(name)]
