"""torch's reader of a DCP directory, except that `.metadata` is never unpickled.

torch reads that file with `pickle.load`, which runs code from the file: a user who can write to the
directory could run code in the job. Here it passes through the restricted reader of
`zerotools.formats.dcp`, and torch's classes are filled with the checked values. (torch loads the
tensors themselves with `weights_only=True`.)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import metadata as of_torch
from torch.distributed.checkpoint.filesystem import _StorageInfo

from zerotools.core.boxes import Box
from zerotools.io.distcp.metadata import Item, Metadata, SavedTensor, read_metadata

METADATA = ".metadata"


class CheckedReader(dcp.FileSystemReader):  # type: ignore[misc] # torch's types are not followed
    """Reads `directory`, with an untrusted `.metadata`."""

    def __init__(self, directory: Path) -> None:
        """Read and check `.metadata`.

        Raises:
            BadFile: it is damaged, or not of DCP.
            Unsupported: the storage of the tensors cannot be addressed.
        """
        super().__init__(directory)
        self.checked = read_metadata(directory / METADATA)

    def read_metadata(self, *args: Any, **kwargs: Any) -> of_torch.Metadata:
        """Return the checked values as torch's classes. Values that are not tensors are left
        out."""
        found = for_torch(self.checked)
        found.storage_meta = of_torch.StorageMeta(load_id=self.load_id)
        return found


def for_torch(metadata: Metadata) -> of_torch.Metadata:
    """Return torch's form of the tensors in `metadata`."""
    return of_torch.Metadata(
        state_dict_metadata={key: _tensor(saved) for key, saved in metadata.tensors.items()},
        planner_data=metadata.paths,
        storage_data={
            of_torch.MetadataIndex(key, box.start, number): _place(item)
            for key, saved in metadata.tensors.items()
            for number, (box, item) in enumerate(saved.parts)
        },
        version=metadata.version,
    )


def _tensor(saved: SavedTensor) -> of_torch.TensorStorageMetadata:
    return of_torch.TensorStorageMetadata(
        properties=of_torch.TensorProperties(dtype=getattr(torch, saved.dtype.name)),
        size=torch.Size(saved.shape),
        chunks=[_chunk(box) for box, _ in saved.parts],
    )


def _chunk(box: Box) -> of_torch.ChunkStorageMetadata:
    return of_torch.ChunkStorageMetadata(torch.Size(box.start), torch.Size(box.shape))


def _place(item: Item) -> Any:
    return _StorageInfo(item.file, item.offset, item.length)
