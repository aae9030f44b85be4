"""Hugging Face `.bin` shards: every file holds other tensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from zerotools.core.checkpoint import Checkpoint, Key, Origin, Problem, Tensor
from zerotools.core.errors import BadFile, Unsupported
from zerotools.formats.torchfile.reading.whole_file import read_single
from zerotools.formats.torchfile.schema.opened_file import FORMAT, open_file
from zerotools.io.files.damage import lose_name, lose_unnamed, tolerate
from zerotools.io.huggingface.model_directory import unread_tensor
from zerotools.io.huggingface.model_sidecars import model_sidecars


def read_shards(path: Path, files: list[str], weight_map: Mapping[str, str] | None) -> Checkpoint:
    """Read all shards in a directory; with an index, also which file each tensor must be in.

    Raises:
        BadFile: a file is missing, or index and files disagree.
    """
    parts = {name: part for name in files if (part := _readable(path, name, weight_map))}
    if not parts:
        raise BadFile(f"{path}: {', '.join(files)} cannot be read; take another copy")
    tensors: dict[Key, Tensor] = {}
    tied: dict[str, str] = {}
    for name, part in parts.items():
        for key in (*part.tensors, *(Key(alias, "param") for alias in part.aliases)):
            if weight_map is not None and weight_map.get(key.name) != name:
                raise BadFile(f"{path / name} holds {key}, but the index does not list it there")
            if key in tensors or key.name in tied:
                raise BadFile(f"{path / name} holds {key}, which another file also holds")
        tensors |= part.tensors
        tied |= part.aliases
    problems: list[Problem] = []
    for listed, name in (weight_map or {}).items():
        if name in parts and Key(listed, "param") not in tensors and listed not in tied:
            why = f"{path / name} lacks {listed}, which the index lists"
            problems += unread_tensor(path / name, listed, why)
    return Checkpoint(
        root=path,
        tensors=tensors,
        origin=Origin(FORMAT, path),
        aliases=tied,
        files={name: size for part in parts.values() for name, size in part.files.items()},
        model_sidecars=model_sidecars(path),
        problems=problems,
    )


def _readable(path: Path, name: str, weight_map: Mapping[str, str] | None) -> Checkpoint | None:
    """Return one file's checkpoint, or None if it is lost and that is tolerated."""
    try:
        return _read(path, name)
    except BadFile as error:
        tolerate(path / name, error)
    for listed, file in (weight_map or {}).items():
        if file == name:
            lose_name(path / name, listed)
    if weight_map is None:
        lose_unnamed(path / name)
    return None


def _read(path: Path, name: str) -> Checkpoint:
    if not (path / name).is_file():
        raise BadFile(f"{path / name} is missing, and its tensors are in no other file")
    opened = open_file(path, name)
    if not opened.contents.is_whole:
        raise Unsupported(
            f"{path / name} holds one rank's pieces, but its name is that of a shard of a whole "
            "model"
        )
    return read_single(path / name, opened)
