"""A DCP directory: its metadata, whether of all ranks or of each, and its tensors by flat key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from zerotools.core.checkpoint import Tensor
from zerotools.core.errors import BadFile
from zerotools.io.distcp.file_names import DATA_FILE, METADATA, RANK_METADATA
from zerotools.io.distcp.items import ItemChunks, Items, refuse_safetensors
from zerotools.io.distcp.metadata import Item, Metadata, SavedTensor, read_metadata


def load_metadata(directory: Path) -> Metadata:
    """Return the contents of `.metadata`, or of the `__R.metadata` of all ranks together.

    Raises:
        BadFile: it does not exist or is damaged, or the ranks disagree.
        Unsupported: items that cannot be addressed, or of an unknown type.
    """
    if (directory / METADATA).exists():
        return read_metadata(directory / METADATA)
    names = metadata_names(directory)
    if not names:
        raise BadFile(
            f"{directory} has no {METADATA}, which torch writes last: the save was not finished; "
            "take an older checkpoint"
        )
    return union([read_metadata(directory / name) for name in names], directory)


def metadata_names(directory: Path) -> list[str]:
    """Return the name of the global `.metadata`, or else those of each rank
    (`use_collectives=False`)."""
    if (directory / METADATA).exists():
        return [METADATA]
    return sorted(path.name for path in directory.iterdir() if RANK_METADATA.fullmatch(path.name))


def union(parts: list[Metadata], directory: Path) -> Metadata:
    """Join the metadata of several ranks, with their files below one `directory`.

    Raises:
        BadFile: they disagree on the type or shape of a tensor.
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
                raise BadFile(f"{directory}: its metadata disagree on the type or shape of {key}")
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


def within(prefix: str, metadata: Metadata) -> Metadata:
    """Return the same metadata, with `prefix` before each file name: relative to the checkpoint's
    root."""
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
    """Return the tensor `saved`, with its values in data files below `root`.

    `files` maps the data files that exist to their sizes in bytes.

    Raises:
        Unsupported: it was saved by `SerializationFormat.SAFETENSORS`.
    """
    for box, item in saved.parts:
        refuse_safetensors(root, flat, item, box.numel * saved.dtype.itemsize)
    # Bytes of a missing file, or after the end of a truncated one, are a hole, which the plan names
    # together with the file.
    parts = [
        (box, item)
        for box, item in saved.parts
        if item.offset + item.length <= files.get(item.file, -1)
    ]
    return Tensor(saved.dtype, saved.shape, ItemChunks(items, flat, saved.dtype, parts))


def saving_ranks(metadata: Metadata) -> int:
    """Count the ranks that wrote data files, by the names of the files."""
    files = {item.file for _, item in metadata.items} | {item.file for item in metadata.empty}
    return len({match[1] for file in files if (match := DATA_FILE.fullmatch(file))})
