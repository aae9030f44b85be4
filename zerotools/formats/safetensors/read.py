"""A safetensors file, or a directory of them, as a Checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Origin, Tensor
from zerotools.core.counts import counted
from zerotools.core.errors import BadFile, BadRequest
from zerotools.formats.safetensors.choose import choose_files
from zerotools.formats.safetensors.header import Header, read_header
from zerotools.formats.safetensors.rank_files import (
    HF_METADATA,
    NOTE,
    known_better,
    missing_shards,
    sharded_tensors,
    shards,
)
from zerotools.io.huggingface.model_sidecars import model_sidecars


def read(path: Path) -> Checkpoint:
    """The weights in `path`: one file, or a directory with an index or with all of its files.

    `choose_files` says which files count. Where each file is one rank's, a tensor is the blocks of
    all.

    Raises:
        BadRequest: there is nothing at `path`, or it is one rank's file.
        BadFile: a file is damaged or missing, or the index and the files disagree.
        Unsupported: an element type that zerotools cannot move.
    """
    root = path if path.is_dir() else path.parent
    chosen = choose_files(path)
    weight_map = chosen.weight_map
    headers = {name: _header(root / name) for name in chosen.names}
    if any(header.starts is not None for header in headers.values()):
        return _read_shards(path, root, headers)
    tensors: dict[Key, Tensor] = {}
    for name, header in headers.items():
        for key, tensor in _tensors(name, header).items():
            if weight_map is not None and weight_map.get(key.name) != name:
                raise BadFile(f"{root / name} holds {key}, and the index does not say so")
            if key in tensors:
                raise BadFile(f"{root / name} holds {key}, which another file also holds")
            tensors[key] = tensor
    for listed, name in (weight_map or {}).items():
        if listed not in headers[name].entries:
            raise BadFile(f"{root / name} lacks {listed}, which the index says it holds")
    return Checkpoint(
        root=root,
        tensors=_in_order(tensors, weight_map),
        origin=Origin("safetensors", path, notes=chosen.notes),
        files={name: header.file_size for name, header in headers.items()},
        model_sidecars=model_sidecars(root) if path.is_dir() else {},
        problems=chosen.problems,
    )


def _read_shards(path: Path, root: Path, headers: Mapping[str, Header]) -> Checkpoint:
    """One file per rank; what is known to be missing is a problem."""
    if path.is_file():
        raise BadRequest(f"{path} is one rank's part of a model; name its directory")
    tensors = sharded_tensors(root, headers)
    numbers = shards(headers)
    beside = root / HF_METADATA
    notes = (
        f"{counted(len(numbers) or len(headers), 'shard')}, counted from the names of the files",
        NOTE,
    )
    return Checkpoint(
        root=root,
        tensors=tensors,
        origin=Origin(
            "safetensors",
            path,
            world_size=max(numbers, default=len(headers)),
            notes=notes,
        ),
        files={name: header.file_size for name, header in headers.items()},
        model_sidecars=(model_sidecars(beside) if beside.is_dir() else {}) | model_sidecars(root),
        problems=[*missing_shards(root, headers), *known_better(root, max(headers), tensors)],
    )


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
