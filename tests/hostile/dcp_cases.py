"""DCP directories whose metadata lie."""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.hostile.archives import FLOAT, stored
from tests.hostile.case import WRITE, Case, Make
from tests.hostile.pickle_cases import TOUCH, Calls
from tests.io.torchzip.archives import archive_bytes
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Opaque
from zerotools.io.distcp.metadata import Item
from zerotools.io.distcp.metadata_writer import WrittenItem, metadata_bytes
from zerotools.io.torchzip.pickle_values import Size
from zerotools.io.torchzip.pickle_writer import dumps

ITEM = archive_bytes(stored((2, 2)), [bytes(16)])
DATA = "__0_0.distcp"
COMMAND = archive_bytes(Opaque("os", "system", (TOUCH,), called=True))
FILLS = "made to fill the memory; do not use it"


def chunk(
    start: tuple[int, ...] = (0, 0),
    *,
    shape: tuple[int, ...] = (2, 2),
    sizes: tuple[int, ...] = (2, 2),
    file: str = DATA,
    offset: int = 0,
    length: int = len(ITEM),
) -> WrittenItem:
    """One chunk of the tensor `w`, as the metadata have it."""
    return WrittenItem("w", Item(file, offset, length), FLOAT, shape, Box(start, sizes))


def saying(*chunks: WrittenItem) -> Make:
    """A directory whose one data file is sound and holds 2 x 2 elements."""
    return holding(metadata_bytes(chunks, None))


def holding(metadata: bytes, item: bytes = ITEM) -> Make:
    """A directory of these two files."""

    def make(directory: Path) -> Path:
        (directory / DATA).write_bytes(item)
        (directory / ".metadata").write_bytes(metadata)
        return directory

    return make


def described(**changes: Any) -> Make:
    """Sound metadata, with other values in place of the tensor's."""
    chunk_state = {"offsets": changes.get("offsets", Size((0, 0))), "sizes": Size((2, 2))}
    module = "torch.distributed.checkpoint.metadata"
    tensor = {
        "properties": Opaque(module, "TensorProperties", state=(FLOAT,)),
        "size": changes.get("size", Size((2, 2))),
        "chunks": [Opaque(module, "ChunkStorageMetadata", state=chunk_state)],
    }
    place = {"relative_path": DATA, "offset": changes.get("offset", 0), "length": len(ITEM)}
    index = Opaque(module, "MetadataIndex", state={"fqn": "w", "offset": Size((0, 0)), "index": 0})
    whole = {
        "state_dict_metadata": {"w": Opaque(module, "TensorStorageMetadata", state=tensor)},
        "planner_data": None,
        "storage_data": {index: Opaque(module, "_StorageInfo", state=place)},
    }
    return holding(dumps(Opaque(module, "Metadata", state=whole)))


def _sparse(directory: Path) -> Path:
    path = holding(b"\x80\x04\x8e" + (10**9).to_bytes(8, "little"))(directory)
    os.truncate(path / ".metadata", 10**9)
    return path


def _other_directory(directory: Path) -> Path:
    (directory / "other").mkdir()
    (directory / "mine").mkdir()
    (directory / "other" / DATA).write_bytes(ITEM)
    return saying(chunk(file=f"../other/{DATA}"))(directory / "mine")


BELOW = "which is not below the checkpoint's directory"

CASES: Sequence[Case] = (
    Case(
        "metadata that are a command",
        holding(pickle.dumps(Calls(os.system, TOUCH))),
        "has posix.system instead of Metadata",
    ),
    Case(
        "a command in place of a tensor",
        holding(metadata_bytes([chunk(length=len(COMMAND))], None), COMMAND),
        "holds os.system instead of the tensor w",
        WRITE,
    ),
    Case(
        "chunks over one another",
        saying(chunk(shape=(3, 2)), chunk((1, 0), shape=(3, 2))),
        "overlap",
        WRITE,
    ),
    Case(
        "chunks that leave a hole",
        saying(chunk(shape=(8, 2)), chunk((6, 0), shape=(8, 2))),
        "w is incomplete: 8 of 16 elements are in no file",
        WRITE,
    ),
    Case("a chunk outside of its tensor", saying(chunk((1, 0))), "which is outside of this shape"),
    Case("a chunk behind the end of its file", saying(chunk(offset=2**40)), "truncated", WRITE),
    Case(
        "a chunk of another shape than its item",
        saying(chunk(shape=(4, 4), sizes=(4, 4))),
        "the metadata has float32 of shape",
        WRITE,
    ),
    Case(
        "an item in the middle of another",
        saying(chunk(offset=7, length=len(ITEM) - 7)),
        "does not end at byte|locator is damaged",
        WRITE,
    ),
    Case("a file above the directory", _other_directory, BELOW),
    Case("an absolute file", saying(chunk(file="/etc/passwd")), BELOW),
    Case("a file of the name ..", saying(chunk(file="..")), BELOW),
    Case("an offset below 0", described(offset=-1), "as sizes or offsets of w"),
    Case(
        "a size below 0",
        described(size=Size((-2, 2))),
        "instead of a count|as sizes or offsets of w",
    ),
    Case("a size of 2 ** 70", described(size=(2**70, 2)), "as sizes or offsets of w"),
    Case(
        "a tensor of 4 exabytes",
        saying(chunk(shape=(2**59, 2))),
        "w is incomplete: .* elements are in no file",
        WRITE,
    ),
    Case("offsets that are text", described(offsets=("a", "b")), "as sizes or offsets of w"),
    Case("metadata of a gigabyte, of which nothing is there", _sparse, FILLS),
    Case("metadata of 3 million dicts", holding(b"\x80\x04" + b"}" * 3_000_000), FILLS),
)
