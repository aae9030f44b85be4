"""Read and write `_METADATA`: the values of the saved tree, and the storage of its arrays."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadFile
from zerotools.formats.orbax.file_names import TREE
from zerotools.io.files.read_json import read_json

_MOST_BYTES = 2**30
_WRITTEN = "np.ndarray"
_ARRAYS = ("jax.Array", _WRITTEN, "scalar")


@dataclass(frozen=True, slots=True)
class TreeValue:
    """A value of the tree. `path` are the keys that lead to the value, and `kind` is Orbax's word
    for its type, such as "jax.Array".
    """

    path: tuple[str, ...]
    kind: str

    @property
    def name(self) -> str:
        """The name under which Orbax stores the value."""
        return ".".join(self.path)


@dataclass(frozen=True, slots=True)
class SavedTree:
    """The tree of one item.

    Attributes:
        arrays: the arrays, stored as zarr of version `zarr`.
        others: strings and values of other types.
        has_all_chunks: True if every chunk of every array was written; False if chunks that have
            only the fill value were left out.
    """

    arrays: tuple[TreeValue, ...]
    others: tuple[TreeValue, ...]
    zarr: int
    has_all_chunks: bool


def read_tree(directory: Path) -> SavedTree:
    """Return the tree that `_METADATA` in `directory` describes.

    Raises:
        BadFile: the file is damaged, or an unknown version of Orbax wrote it.
    """
    path = directory / TREE
    try:
        found = read_json(path, _MOST_BYTES)
        values = [
            _value(entry) for entry in found["tree_metadata"].values() if not _is_skipped(entry)
        ]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise BadFile(
            f"{path} is not a tree as Orbax describes it ({type(error).__name__}: {error}): it "
            "is damaged, or another version of Orbax wrote it; copy or download it again, or "
            "save the checkpoint again with orbax-checkpoint 0.11 or newer"
        ) from None
    return SavedTree(
        arrays=tuple(value for value in values if value.kind in _ARRAYS),
        others=tuple(value for value in values if value.kind not in _ARRAYS),
        zarr=3 if found.get("use_zarr3") is True else 2,
        has_all_chunks=found.get("store_array_data_equal_to_fill_value") is True,
    )


def _is_skipped(entry: Any) -> bool:
    """Return whether a node of the tree has no value: None, or an empty dict or list."""
    return entry["value_metadata"].get("skip_deserialize") is True


def _value(entry: Any) -> TreeValue:
    keys = tuple(each["key"] for each in entry["key_metadata"])
    kind = entry["value_metadata"]["value_type"]
    if not keys or not all(isinstance(word, str) for word in (*keys, kind)):
        raise TypeError("a key or a type is not text")
    value = TreeValue(keys, kind)
    if leads_out(value.name):
        raise ValueError(f"the name {value.name!r} is not a path below its directory")
    return value


def leads_out(name: str) -> bool:
    """Return whether the name of an array leads out of its item's directory or is not a valid
    path."""
    return not {"", ".", ".."}.isdisjoint(name.split("/")) or "\0" in name


def tree_file(paths: Iterable[tuple[str, ...]]) -> bytes:
    """Return the content of `_METADATA` for a tree of dicts with arrays at `paths`. Each array is
    stored as zarr 2 with all chunks, without OCDBT.

    The arrays are declared as numpy arrays, because Orbax can restore these both without a sharding
    and with the sharding that a program requests. Source: orbax-checkpoint 0.12.8,
    `_src/metadata/tree.py` (`InternalTreeMetadata`; the key of a dict has type 2).
    """
    tree = {
        str(path): {
            "key_metadata": [{"key": key, "key_type": 2} for key in path],
            "value_metadata": {"value_type": _WRITTEN, "skip_deserialize": False},
        }
        for path in paths
    }
    whole = {
        "tree_metadata": tree,
        "use_ocdbt": False,
        "use_zarr3": False,
        "store_array_data_equal_to_fill_value": True,
        "custom_metadata": None,
    }
    return json.dumps(whole).encode()
