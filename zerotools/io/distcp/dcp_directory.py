"""A DCP directory: its metadata, and its tensors by flat key. The metadata is in one file for all
ranks, or in one file for each rank.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from zerotools.core.checkpoint import Tensor
from zerotools.core.errors import BadFile
from zerotools.io.distcp.dcp_file_names import DATA_FILE, METADATA, RANK_METADATA
from zerotools.io.distcp.item_chunks import ItemChunks, Items, refuse_safetensors
from zerotools.io.distcp.metadata import Item, Metadata, SavedTensor, read_metadata


def load_metadata(directory: Path) -> Metadata:
    """Return the contents of `.metadata`, or, if the ranks wrote separate files `__R.metadata`, the
    contents of all these files together.

    Raises:
        BadFile: the metadata does not exist or is damaged, or the files of the ranks disagree.
        Unsupported: an item is compressed or encrypted, or has an unknown dtype.
    """
    if (directory / METADATA).exists():
        return read_metadata(directory / METADATA)
    names = metadata_names(directory)
    if not names:
        raise BadFile(
            f"{directory} has no {METADATA}, which torch writes last: the save was not finished; "
            "take an older checkpoint"
        )
    return joined_metadata([read_metadata(directory / name) for name in names], directory)


def metadata_names(directory: Path) -> list[str]:
    """Return the name of the global file `.metadata`, or, if it does not exist, the names of the
    files of each rank (`use_collectives=False`).
    """
    if (directory / METADATA).exists():
        return [METADATA]
    return sorted(path.name for path in directory.iterdir() if RANK_METADATA.fullmatch(path.name))


def joined_metadata(parts: list[Metadata], directory: Path) -> Metadata:
    """Join `parts`, the metadata of several ranks, to one. The data files of all ranks are in
    `directory`.

    Raises:
        BadFile: two ranks disagree on the dtype or shape of a tensor.
    """
    if len(parts) == 1:
        return parts[0]
    tensors: dict[str, SavedTensor] = {}
    blobs: dict[str, Item] = {}
    paths: dict[str, tuple[str | int, ...]] = {}
    for part in parts:
        for key, saved in part.tensors.items():
            known = tensors.get(key, saved)
            if (known.dtype, known.shape) != (saved.dtype, saved.shape):
                raise BadFile(
                    f"{directory}: its .metadata files have different dtypes or shapes for {key}; "
                    "take another checkpoint"
                )
            more = saved.parts if key in tensors else ()
            tensors[key] = replace(known, parts=(*known.parts, *more))
        blobs |= {key: item for key, item in part.blobs.items() if key not in blobs}
        paths |= part.paths or {}
    extras = tuple(dict.fromkeys(name for part in parts for name in part.extras))
    return Metadata(
        tensors,
        blobs,
        paths or None,
        parts[0].version,
        (*tensors, *blobs),
        tuple(item for part in parts for item in part.empty),
        extras,
        any(part.is_megatron for part in parts),
    )


def with_prefix(prefix: str, metadata: Metadata) -> Metadata:
    """Return the metadata with `prefix` before each file name. File names are then relative to the
    root of the checkpoint.
    """
    if not prefix:
        return metadata

    def moved(item: Item) -> Item:
        return replace(item, file=prefix + item.file)

    tensors = {
        key: replace(saved, parts=tuple((box, moved(item)) for box, item in saved.parts))
        for key, saved in metadata.tensors.items()
    }
    blobs = {key: moved(item) for key, item in metadata.blobs.items()}
    empty = tuple(map(moved, metadata.empty))
    return replace(metadata, tensors=tensors, blobs=blobs, empty=empty)


def tensor_of(
    items: Items, root: Path, flat: str, saved: SavedTensor, files: Mapping[str, int]
) -> Tensor:
    """Return the tensor `saved` as a `Tensor` with its values in data files below `root`.

    `files` maps the names of the existing data files to their sizes in bytes.

    Raises:
        Unsupported: the tensor was saved by `SerializationFormat.SAFETENSORS`.
    """
    for box, item in saved.parts:
        refuse_safetensors(root, flat, item, box.numel * saved.dtype.itemsize)
    # Bytes of a missing file, or after the end of a truncated file, are a hole. The error of the
    # plan names the tensor and the file.
    parts = [
        (box, item)
        for box, item in saved.parts
        if item.offset + item.length <= files.get(item.file, -1)
    ]
    return Tensor(saved.dtype, saved.shape, ItemChunks(items, flat, saved.dtype, parts))


def saving_ranks(metadata: Metadata) -> int:
    """Return the number of ranks that wrote data files, according to the names of the files."""
    files = {item.file for _, item in metadata.items} | {item.file for item in metadata.empty}
    return len({match[1] for file in files if (match := DATA_FILE.fullmatch(file))})
