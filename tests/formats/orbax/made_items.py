"""Items that TensorStore writes here as Orbax does: for arrays of sizes that no golden case has."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

SMALL_NODES = {"max_inline_value_bytes": 100, "max_decoded_node_bytes": 1000}


def made_item(
    item: Path,
    arrays: Mapping[str, np.ndarray],
    *,
    rows: int,
    config: Mapping[str, Any] | None = None,
    zarr: int = 2,
    metadata: Mapping[str, Any] | None = None,
) -> Path:
    """An item with these weights, each in chunks of so many rows; with a `config`, in OCDBT.
    `metadata` is what zarr's description of each has of its own.
    """
    tensorstore = pytest.importorskip("tensorstore")
    item.mkdir(parents=True)
    files: dict[str, Any] = {"driver": "file", "path": f"{item}/"}
    if config is not None:
        files = {"driver": "ocdbt", "base": files, "config": {"manifest_kind": "single", **config}}
    transaction = tensorstore.Transaction() if config is not None else None
    for name, array in arrays.items():
        chunk = [min(rows, array.shape[0]), *array.shape[1:]] if array.ndim else []
        spec = {
            "driver": "zarr" if zarr == 2 else "zarr3",
            "kvstore": {**files, "path": f"{name}/" if config is not None else f"{item}/{name}/"},
            "schema": {"chunk_layout": {"write_chunk": {"shape": chunk}}},
            "store_data_equal_to_fill_value": True,
            "create": True,
            "metadata": dict(metadata or {}),
        }
        kind = None if "dtype" in spec["metadata"] else array.dtype.name
        form = {"dtype": kind, "shape": array.shape, "transaction": transaction}
        tensorstore.open(spec, **form).result().write(array).result()
    if transaction is not None:
        transaction.commit_sync()
    tree = {
        name: {
            "key_metadata": [{"key": word, "key_type": 2} for word in name.split(".")],
            "value_metadata": {"value_type": "jax.Array", "skip_deserialize": False},
        }
        for name in arrays
    }
    whole = {
        "tree_metadata": tree,
        "use_ocdbt": config is not None,
        "use_zarr3": zarr == 3,
        "store_array_data_equal_to_fill_value": True,
    }
    (item / "_METADATA").write_text(json.dumps(whole))
    return item
