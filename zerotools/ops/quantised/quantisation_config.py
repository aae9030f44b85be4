"""Read the `quantization_config` of a config.json, and replace it.

Sources: transformers `utils/quantization_config.py` and `quantizers/auto.py`, compressed-tensors
`quantization/quant_config.py`, ModelOpt's exported config.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadFile
from zerotools.io.files.read_json import read_json
from zerotools.io.huggingface.config_json import LARGEST_CONFIG

KEYS = ("quantization_config", "compression_config")
Block = tuple[int, ...]
Blocks = tuple[Block, ...]
_BLOCKS_OF_FP8: Blocks = ((128, 128),)
"""The default weight_block_size of transformers' `FineGrainedFP8Config`."""
_MOST_GROUPS = 1000
KINDS = {
    "fp8": ("fp8", "mxfp8"),
    "mxfp8": ("mxfp8",),
    "mxfp4": ("mxfp4",),
    "compressed-tensors": ("fp8", "int8 ", "mxfp8", "mxfp4", "nvfp4"),
    "modelopt": ("nvfp4",),
    "bitsandbytes": ("nf4", "fp4", "int8 of bitsandbytes"),
}
"""The beginnings of the names of the kinds of weights that each `quant_method` has."""
FORMATS = frozenset({
    "float-quantized", "naive-quantized", "int-quantized", "mxfp8-quantized", "mixed-precision",
    "mxfp4-pack-quantized", "nvfp4-pack-quantized",
})  # fmt: skip
"""The formats of compressed-tensors."""


@dataclass(frozen=True)
class QuantisationConfig:
    """The `quantization_config` of a model. `method` is its `quant_method`, or None. `settings` is
    the whole table."""

    path: Path
    method: str | None
    settings: Mapping[str, Any]

    @property
    def said(self) -> str:
        """A phrase with the method for messages, such as "config.json has quant_method 'fp8'"."""
        return f"{self.path} has quant_method {self.method!r:.60}"

    def blocks(self) -> Blocks:
        """Return the shapes of blocks that the config names.

        Raises:
            BadFile: the config names an invalid block.
        """
        return tuple(dict.fromkeys(self._blocks()))

    def _blocks(self) -> Iterator[tuple[int, ...]]:
        named = self.settings.get("weight_block_size")
        if named is not None and not list(_block(named)):
            raise BadFile(
                f"{self.path}: weight_block_size is {named!r:.60}, and must be two numbers of 1 or "
                "more; correct it"
            )
        yield from _block(named)
        if self.method == "fp8" and "weight_block_size" not in self.settings:
            yield from _BLOCKS_OF_FP8
        groups = self.settings.get("config_groups")
        values = list(groups.values())[:_MOST_GROUPS] if isinstance(groups, Mapping) else []
        for group in values:
            weights = group.get("weights") if isinstance(group, Mapping) else None
            if isinstance(weights, Mapping):
                yield from _block(weights.get("block_structure"))
                yield from _block([1, weights.get("group_size")])


def _block(value: Any) -> Iterator[tuple[int, ...]]:
    is_pair = isinstance(value, list) and len(value) == 2
    if is_pair and all(type(n) is int and 0 < n < 2**31 for n in value):
        yield tuple(value)


def quantisation_config(path: Path | None) -> QuantisationConfig | None:
    """Return the quantisation settings of the config.json at `path`. Return None if it has no such
    settings.

    Raises:
        BadFile: the file cannot be read, or its settings are not a table.
    """
    config = None if path is None else _read(path)
    if path is None or config is None:
        return None
    for table in _tables(config):
        for key in KEYS:
            settings = table.get(key)
            if settings is None or settings == {}:
                continue
            if not isinstance(settings, dict):
                raise BadFile(f"{path}: {key} is {settings!r:.60}, but must be a table; correct it")
            return QuantisationConfig(path, _method(settings), settings)
    return None


def _method(settings: Mapping[str, Any]) -> str | None:
    if settings.get("load_in_8bit") is True or settings.get("load_in_4bit") is True:
        return "bitsandbytes"
    method = settings.get("quant_method")
    return method if isinstance(method, str) else None


def config_text(path: Path, settings: Mapping[str, Any] | None, text: bytes | None) -> bytes | None:
    """Return the text of a config.json with `settings` as its only quantization_config (None:
    without one). Return None if the file is not a table in JSON.

    `text` is the content of the file at `path`; None: it is read.

    Raises:
        BadFile: the file cannot be read.
    """
    config: Any = _read(path) if text is None else json.loads(text)
    if config is None:
        return None
    for table in _tables(config):
        for key in KEYS:
            table.pop(key, None)
    if settings is not None:
        config["quantization_config"] = dict(settings)
    return (json.dumps(config, indent=2, ensure_ascii=False) + "\n").encode()


def model_type(path: Path) -> str | None:
    """Return the `model_type` of a config.json, or None.

    Raises:
        BadFile: the file cannot be read.
    """
    found = (_read(path) or {}).get("model_type")
    return found if isinstance(found, str) else None


def config_fault(path: Path | None) -> str | None:
    """Return the reason why the config.json at `path` cannot be read, as a part of a sentence; None
    if it can be read, or does not exist."""
    if path is None:
        return None
    try:
        tree: Any = read_json(path, LARGEST_CONFIG)
    except (ValueError, RecursionError) as error:
        return f"{path}, which should have this setting, is not JSON ({error!s:.200}); correct it"
    return None if isinstance(tree, dict) else f"{path} is not a JSON object; correct it"


def is_quantised_config(text: bytes) -> bool:
    """Return whether the text of a config.json declares quantised weights."""
    try:
        tree: Any = json.loads(text)
    except (ValueError, RecursionError):
        return False
    tables = _tables(tree) if isinstance(tree, dict) else ()
    return any(table.get(key) for table in tables for key in KEYS)


def _read(path: Path) -> dict[str, Any] | None:
    try:
        config: Any = read_json(path, LARGEST_CONFIG)
    except (ValueError, RecursionError):
        return None
    return config if isinstance(config, dict) else None


def _tables(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the config itself, and the configs of models inside it, such as `text_config`."""
    yield config
    for key, value in config.items():
        if key.endswith("_config") and key not in KEYS and isinstance(value, dict):
            yield from _tables(value)
