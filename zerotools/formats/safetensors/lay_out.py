"""Lay out a Hugging Face model directory: one or more safetensors files, an index, and sidecar
files.

The bytes equal those that safetensors' own serializer writes. The tensors are divided into files as
huggingface_hub does it: in key order, a new file begins if the next tensor would exceed the maximum
size.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from zerotools.core import dtypes
from zerotools.core.checkpoint import Checkpoint, Tensor
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.core.target import FilePlan, LiteralBytes, Target
from zerotools.formats.safetensors.header import LARGEST_HEADER, METADATA
from zerotools.io.huggingface.lay_out_model_directory import ModelFileStyle, lay_out_model

INDEX = "model.safetensors.index.json"

# In a file, the reference implementation sorts tensors by dtype, in the descending order of its
# enum, and then by name.
_ORDER = {
    dtype: rank
    for rank, dtype in enumerate(
        (
            dtypes.UINT64, dtypes.INT64, dtypes.FLOAT64, dtypes.COMPLEX64, dtypes.FLOAT32,
            dtypes.UINT32, dtypes.INT32, dtypes.BFLOAT16, dtypes.FLOAT16, dtypes.UINT16,
            dtypes.INT16, dtypes.FLOAT8_E5M2FNUZ, dtypes.FLOAT8_E4M3FNUZ, dtypes.FLOAT8_E8M0FNU,
            dtypes.FLOAT8_E4M3FN, dtypes.FLOAT8_E5M2, dtypes.INT8, dtypes.UINT8, dtypes.BOOL,
        )
    )
}  # fmt: skip


def lay_out(
    source: Checkpoint,
    destination: Path,
    *,
    max_shard_bytes: int,
    metadata: Mapping[str, str] | None = None,
    stem: str = "model",
) -> Target:
    """Plan safetensors files with the weights of `source` in `destination`, under their names and
    in their dtypes.

    The roles must be `param` or `buffer`; the caller selects and casts the tensors. Tied names are
    left out. A tensor larger than `max_shard_bytes` gets a file of its own. `metadata` is the
    `__metadata__` of the files, by default `{"format": "pt"}`, which loaders require. File names
    begin with `stem`.

    Raises:
        BadRequest: there is nothing to write, a tensor has another role, two tensors have the same
            name, or the shard size is not valid.
        Unsupported: safetensors does not have the dtype of a tensor.
    """
    for key, tensor in source.tensors.items():
        if tensor.dtype.safetensors is None:
            raise Unsupported(
                f"{key} is {tensor.dtype}, which safetensors cannot store; choose another dtype "
                "with --dtype"
            )

    def encode(shard: Mapping[str, Tensor]) -> tuple[FilePlan, dict[str, int]]:
        header, offsets = _header(shard, metadata or {"format": "pt"})
        size = len(header) + sum(tensor.nbytes for tensor in shard.values())
        return FilePlan(size, [LiteralBytes(0, header)]), offsets

    style = ModelFileStyle("safetensors", stem, ".safetensors", INDEX, encode)
    return lay_out_model(
        source, destination, style, max_shard_bytes=max_shard_bytes, forbidden=(METADATA,)
    )


def _header(
    shard: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, int]]:
    """Return the header of the file, padded with spaces to a multiple of 8 bytes, and the offset
    of each tensor.
    """
    tree: dict[str, object] = {METADATA: dict(metadata)}
    relative: dict[str, int] = {}
    at = 0
    for name in sorted(shard, key=lambda name: (_ORDER[shard[name].dtype], name.encode())):
        tensor = shard[name]
        relative[name] = at
        tree[name] = {
            "dtype": tensor.dtype.safetensors,
            "shape": list(tensor.shape),
            "data_offsets": [at, at + tensor.nbytes],
        }
        at += tensor.nbytes
    text = json.dumps(tree, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    if len(text) > LARGEST_HEADER:
        raise BadRequest(
            f"a header of {len(text)} bytes is longer than the {LARGEST_HEADER} that readers "
            "accept; choose a smaller --max-shard-size"
        )
    begin = 8 + len(text)
    header = len(text).to_bytes(8, "little") + text
    return header, {name: begin + offset for name, offset in relative.items()}
