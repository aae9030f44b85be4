"""Files of an HTTP server, by obstore. A server lists nothing: of a directory is known what an
index in it names, and no file beside that but those of a model.

    .zerotools-output.json          every file of an output of zerotools
    MANIFEST.json                   every file of a checkpoint of a job
    model.safetensors.index.json    the shards of a model
    model.safetensors               a model of one file
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from typing import Any

from zerotools.core.errors import BadFile
from zerotools.io.files.filenames import stays_below_root
from zerotools.io.stores.bucket import ObstoreBucket, open_web
from zerotools.io.stores.far_store import FarDirectory, FarObject, directory_of

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


class WebFiles:
    """The files of one host."""

    lists_below = True

    def __init__(self, url: str) -> None:
        self.url = url
        self._known: dict[str, list[FarObject]] = {}

    @cached_property
    def _server(self) -> ObstoreBucket:
        return open_web(self.url)

    def directory(self, key: str) -> FarDirectory:
        return directory_of(key, self.below(key))

    def below(self, key: str) -> Iterator[FarObject]:
        for base, objects in self._known.items():
            if key == base or not base or key.startswith(f"{base}/"):
                start = f"{key}/" if key else ""
                return (each for each in objects if each.key.startswith(start))
        found = self._indexed(f"{key}/" if key else "")
        if found:
            self._known[key] = found
        return iter(found)

    def head(self, key: str) -> FarObject | None:
        return self._server.head(key)

    def get(self, found: FarObject, begin: int, end: int) -> memoryview:
        return self._server.get(found, begin, end)

    def _indexed(self, start: str) -> list[FarObject]:
        """What an index in a directory names, and files of a model beside it, as far as they are
        there."""
        names: dict[str, None] = {}
        for index, named in ((_MARKER, _files), (_MANIFEST, _files), (_INDEX, _shards)):
            found = self.head(start + index)
            if found is not None:
                names |= dict.fromkeys([index, *named(self._tree(found))])
                break
        else:
            sole = [name for name in (_SOLE, _ADAPTER[0]) if self.head(start + name) is not None]
            if not sole:
                return []
            names |= dict.fromkeys((*sole, *_ADAPTER))
        wanted = [*dict.fromkeys([*names, *_OF_MODELS])]
        with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
            heads = pool.map(lambda name: self.head(start + name), wanted)
            return [each for each in heads if each is not None]

    def _tree(self, found: FarObject) -> Any:
        url = f"{self.url}/{found.key}"
        if found.size > _LARGEST_INDEX:
            raise BadFile(f"{url} has {found.size} bytes, too many for an index")
        try:
            return json.loads(bytes(self.get(found, 0, found.size)))
        except (ValueError, RecursionError):
            raise BadFile(f"{url} is not JSON") from None


def _files(tree: Any) -> list[str]:
    """The names in a marker or a manifest."""
    return _safe(tree.get("files") if isinstance(tree, dict) else None)


def _shards(tree: Any) -> list[str]:
    """The files that an index of safetensors names."""
    places = tree.get("weight_map") if isinstance(tree, dict) else None
    return _safe(places.values() if isinstance(places, dict) else None)


def _safe(names: Any) -> list[str]:
    return [name for name in names or () if isinstance(name, str) and stays_below_root(name)]
