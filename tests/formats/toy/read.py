"""Read the metadata of a toy checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.formats.toy.file_names import METADATA, rank_file
from tests.formats.toy.json_fields import JsonFields
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Origin, Problem, Tensor
from zerotools.core.errors import BadFile, Unsupported
from zerotools.io.files.regular_files import read_regular
from zerotools.io.files.source_stamps import record_source_path
from zerotools.io.huggingface.model_sidecars import find_model_sidecars

VERSION = 1
MOST_BYTES = 2**30
MOST_RANKS = 2**16


def read(path: Path) -> Checkpoint:
    """The checkpoint in the directory `path`; a rank's file that is missing is a problem of it.

    Raises:
        BadFile: toy.json is missing or damaged.
        Unsupported: another version, or a type that zerotools does not know.
    """
    data, size = _read_json(path / METADATA)
    document = JsonFields(path / METADATA, "the file", data)
    if (version := document.count("toy")) != VERSION:
        raise Unsupported(f"{path / METADATA} is of version {version}; zerotools reads {VERSION}")
    if not 0 < (world_size := document.count("world_size")) <= MOST_RANKS:
        raise document.wrong(f"says that there were {world_size} ranks")
    ranks = {name: _size(path / name) for name in map(rank_file, range(world_size))}
    tensors = dict(_tensor(entry, ranks) for entry in document.tables("tensors"))
    if len(tensors) < len(document.array("tensors")):
        raise document.wrong("lists a tensor twice")
    aliases, run = document.table("aliases"), document.table("run")
    step = run.count("steps") if run.has("steps") else None
    precision = run.dtype("precision") if run.has("precision") else None
    return Checkpoint(
        path,
        tensors,
        Origin("toy", path, world_size=world_size, step=step, precision=precision),
        aliases={alias: aliases.text(alias) for alias in aliases.values},
        state={"scalars": document.array("scalars"), "run": run.values},
        files={METADATA: size, **{name: n for name, n in ranks.items() if n is not None}},
        model_sidecars=find_model_sidecars(path),
        problems=[
            Problem(f"{path / name} is missing; copy it from where it was saved", name)
            for name, n in ranks.items()
            if n is None
        ],
    )


def _read_json(path: Path) -> tuple[Any, int]:
    try:
        data = read_regular(path, MOST_BYTES)
        return json.loads(data), len(data)
    except OSError as error:
        raise BadFile(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{path} is not JSON ({error}); save the checkpoint again") from None


def _size(path: Path) -> int | None:
    try:
        return record_source_path(path)
    except OSError:
        return None


def _tensor(entry: JsonFields, ranks: Mapping[str, int | None]) -> tuple[Key, Tensor]:
    key = Key(entry.text("name"), entry.text("role"))
    shape = entry.counts("shape")
    return key, Tensor(entry.dtype("dtype"), shape, list(_chunks(entry, len(shape), ranks)))


def _chunks(entry: JsonFields, dimensions: int, ranks: Mapping[str, int | None]) -> Iterator[Chunk]:
    """The blocks whose files are there: the others are holes in the tensor."""
    for block in entry.tables("blocks"):
        box, file = Box(block.counts("start"), block.counts("shape")), block.text("file")
        if not len(box.start) == len(box.shape) == dimensions:
            raise block.wrong(f"is not of {dimensions} dimensions")
        if file not in ranks:
            raise block.wrong(f"is in {file!r}, which is no file of the {len(ranks)} ranks")
        if ranks[file] is not None:
            yield Chunk(box, file, block.count("offset"))
