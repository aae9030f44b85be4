"""A safetensors file, or a directory of them, as a Checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Origin, Tensor
from zerotools.core.errors import BadFile, BadRequest
from zerotools.formats.safetensors.header import Header, read_header
from zerotools.formats.safetensors.sharded import (
    HF_METADATA,
    NOTE,
    SHARD,
    known_better,
    missing_shards,
    sharded_tensors,
    shards,
)
from zerotools.io.companions import companions
from zerotools.io.modelfiles import read_index

SUFFIX = ".safetensors"
INDEX_SUFFIX = ".safetensors.index.json"
_PREFERRED = "model.safetensors"


def read(path: Path) -> Checkpoint:
    """The weights in `path`: one file, or a directory with an index or with all of its files.

    A directory's `model.safetensors` is taken alone, as transformers does; else an index says which
    files count; else all of them do. Where each file is one rank's, a tensor is the blocks of all.

    Raises:
        BadRequest: there is nothing at `path`, or it is one rank's file.
        BadFile: a file is damaged or missing, or the index and the files disagree.
        Unsupported: an element type that zerotools cannot move.
    """
    root = path if path.is_dir() else path.parent
    names, weight_map = _choose(path)
    headers = {name: _header(root / name) for name in names}
    if any(header.starts is not None for header in headers.values()):
        return _read_shards(path, root, headers)
    tensors: dict[Key, Tensor] = {}
    for name, header in headers.items():
        for key, tensor in _tensors(name, header).items():
            if weight_map is not None and weight_map.get(key.name) != name:
                raise BadFile(f"{root / name} holds {key}, and the index does not say so")
            if key in tensors:
                raise BadFile(f"{root / name} holds {key}, which another file holds too")
            tensors[key] = tensor
    for wanted, name in (weight_map or {}).items():
        if wanted not in headers[name].entries:
            raise BadFile(f"{root / name} lacks {wanted}, which the index says it holds")
    return Checkpoint(
        root=root,
        tensors=_in_order(tensors, weight_map),
        origin=_origin(path, headers),
        files={name: header.file_size for name, header in headers.items()},
        companions=companions(root) if path.is_dir() else {},
    )


def _read_shards(path: Path, root: Path, headers: Mapping[str, Header]) -> Checkpoint:
    """One file per rank; what is known to be missing is a problem."""
    if path.is_file():
        raise BadRequest(f"{path} is one rank's share of a model; name its directory")
    tensors = sharded_tensors(root, headers)
    numbers = shards(headers)
    beside = root / HF_METADATA
    origin = _origin(path, headers)
    notes = (f"{len(numbers) or len(headers)} shards, counted from the names of the files", NOTE)
    return Checkpoint(
        root=root,
        tensors=tensors,
        origin=replace(origin, world_size=max(numbers, default=len(headers)), notes=notes),
        files={name: header.file_size for name, header in headers.items()},
        companions=(companions(beside) if beside.is_dir() else {}) | companions(root),
        problems=[*missing_shards(root, headers), *known_better(root, max(headers), tensors)],
    )


def _choose(path: Path) -> tuple[list[str], dict[str, str] | None]:
    """Names of the files to read, and the index's map of tensors to files if there is one."""
    if not path.exists():
        raise BadRequest(f"{path} does not exist")
    if not path.is_dir():
        return [path.name], None
    names = sorted(entry.name for entry in path.iterdir() if entry.name.endswith(SUFFIX))
    if _PREFERRED in names:
        return [_PREFERRED], None
    indexes = sorted(e.name for e in path.iterdir() if e.name.endswith(INDEX_SUFFIX))
    if len(indexes) > 1:
        raise BadRequest(f"{path} has several indexes: name one of {', '.join(indexes)}")
    if indexes and not _are_shards(path, names, indexes[0]):
        weight_map = read_index(path / indexes[0])
        return sorted(set(weight_map.values())), weight_map
    if not names:
        raise BadFile(f"{path} has no *{SUFFIX} file")
    if shards(names):
        names = [name for name in names if SHARD.fullmatch(name)]
    return names, None


def _are_shards(path: Path, names: list[str], index: str) -> bool:
    """Whether the files are one per rank, and the index one of another, absent copy."""
    if not shards(names):
        return False
    return not set(read_index(path / index).values()) & set(names)


def _header(path: Path) -> Header:
    try:
        return read_header(path)
    except FileNotFoundError:
        raise BadFile(f"{path} is missing, and its tensors are in no other file") from None
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror}") from None


def _tensors(name: str, header: Header) -> dict[Key, Tensor]:
    return {
        Key(key, "param"): Tensor(
            entry.dtype, entry.shape, (Chunk(Box.whole(entry.shape), name, entry.begin),)
        )
        for key, entry in header.entries.items()
    }


def _in_order(
    tensors: dict[Key, Tensor], weight_map: Mapping[str, str] | None
) -> dict[Key, Tensor]:
    if weight_map is None:
        return tensors
    return {Key(name, "param"): tensors[Key(name, "param")] for name in weight_map}


def _origin(path: Path, headers: Mapping[str, Header]) -> Origin:
    metadata = {name: dict(header.metadata) for name, header in headers.items() if header.metadata}
    return Origin("safetensors", path, details={"metadata": metadata})
