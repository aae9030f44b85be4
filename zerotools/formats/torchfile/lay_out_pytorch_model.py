"""Lay out a Hugging Face model directory with weights in torch.save files: `pytorch_model*.bin`.

Each file is an OrderedDict {name: tensor}, and each tensor has a separate storage, so that
`torch.load(weights_only=True)` and `from_pretrained` can read the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from zerotools.core.boxes import row_major_strides
from zerotools.core.checkpoint import Checkpoint, Tensor
from zerotools.core.target import Checksum, FilePlan, LiteralBytes, Target
from zerotools.io.huggingface.lay_out_model_directory import ModelFileStyle, lay_out_model
from zerotools.io.torchzip import archive_layout as archives
from zerotools.io.torchzip.pickle_values import Ordered, Storage, StoredTensor
from zerotools.io.torchzip.pickle_writer import dumps

INDEX = "pytorch_model.bin.index.json"


def lay_out(source: Checkpoint, destination: Path, *, max_shard_bytes: int) -> Target:
    """Plan torch files with the weights of `source` in `destination`, under their names and in
    their dtypes.

    The roles must be `param` or `buffer`; the caller selects and casts the tensors. Tied names are
    left out. A tensor larger than `max_shard_bytes` gets a file of its own.

    Raises:
        BadRequest: there is nothing to write, a tensor has another role, two tensors have the same
            name, or the shard size is not valid.
    """
    style = ModelFileStyle("torchfile", "pytorch_model", ".bin", INDEX, _archive)
    return lay_out_model(source, destination, style, max_shard_bytes=max_shard_bytes)


def _archive(shard: Mapping[str, Tensor]) -> tuple[FilePlan, dict[str, int]]:
    """Return the plan of one file, and the byte offset of each tensor in it; the offset of an
    empty tensor is 0.
    """
    tree = Ordered(
        {
            name: stored_tensor(str(number), tensor)
            for number, (name, tensor) in enumerate(shard.items())
        }
    )
    layout = archives.lay_out(dumps(tree), [tensor.nbytes for tensor in shard.values()])
    full = [name for name, tensor in shard.items() if tensor.nbytes]
    offsets = dict.fromkeys(shard, 0)
    offsets |= {name: at.offset for name, at in zip(full, layout.payloads, strict=True)}
    plan = FilePlan(
        layout.length,
        literals=[LiteralBytes(at, data) for at, data in layout.literals],
        checksums=[Checksum(at.offset, at.length, at.crc_at) for at in layout.payloads],
    )
    return plan, offsets


def stored_tensor(key: str, tensor: Tensor) -> StoredTensor:
    """Return a contiguous tensor that is the only tensor in the storage with the key `key`.

    If torch has no storage class for the dtype, the storage is untyped.
    """
    dtype = tensor.dtype
    typed = dtype.torch_storage is not None
    storage = Storage(key, dtype if typed else None, tensor.numel if typed else tensor.nbytes)
    return StoredTensor(storage, dtype, 0, tensor.shape, row_major_strides(tensor.shape))
