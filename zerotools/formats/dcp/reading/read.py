"""A DCP directory, or a checkpoint that holds one or two of them, as a Checkpoint."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from zerotools.core.checkpoint import Checkpoint, Key, Origin, Tensor
from zerotools.core.counts import counted
from zerotools.core.errors import BadFile, BadRequest
from zerotools.formats.dcp.directories import (
    ATTRIBUTES,
    DIRECTORIES,
    NUMBERED,
    OPTIMIZERS,
    TIED,
    prefixes,
)
from zerotools.formats.dcp.directory_names import METADATA, RANK_METADATA
from zerotools.formats.dcp.keys.flat_keys import NamedKeys, job_keys, name_tensors
from zerotools.formats.dcp.reading.data_files import (
    data_files,
    missing_as_recorded,
    mixed_saves,
    sizes,
)
from zerotools.io.distcp.items import BlobTrees, ItemChunks, Items, refuse_safetensors
from zerotools.io.distcp.metadata import Item, Metadata, SavedTensor, read_metadata
from zerotools.io.huggingface.model_sidecars import model_sidecars
from zerotools.runs.checkpoint_dirs import DCP, RECORD, JobRecord, read_record

_DATA_FILE = re.compile(r"(?:.*/)?__(\d+)_\d+\.distcp")
_MEGATRON = (
    "{path} is a Megatron torch_dist checkpoint without its common.pt and metadata.json, which "
    "zerotools recognises and does not convert: its names and shards are Megatron's own; export it "
    "with Megatron-Bridge to Hugging Face's format, and pass that directory"
)
_OWN = re.compile(r"job\.json|rank_\d+\.json|MANIFEST\.json|\.zerotools-output\.json")


def read(path: Path, *, section: str | None = None) -> Checkpoint:
    """The checkpoint in `path`: a directory with `.metadata`, a job's `step-N`, or a model and its
    optimizer as accelerate saves them.

    `section` names the model that is meant, where the checkpoint holds several. Where it holds
    several and none is named, they all have their flat keys as names, and `origin.question` asks.
    Reads `.metadata` (or the union of `__R.metadata` where there is no global one) and the sizes of
    the files that it names; items are opened when a tensor's chunks are asked for.

    Raises:
        BadRequest: there is no such directory, or no such section.
        BadFile: it holds no finished DCP checkpoint, or a damaged one.
        Unsupported: items that cannot be addressed, or of an unknown type.
    """
    if not path.is_dir():
        raise BadRequest(f"{path} is not a directory")
    record = read_record(path) if (path / RECORD).exists() else None
    found, unfinished = prefixes(path)
    parts = {prefix: _within(prefix, _load(path / prefix)) for prefix in found}
    metadata = _union(list(parts.values()), path)
    files, problems = data_files(path, metadata)
    problems += unfinished
    for prefix in found:
        files |= sizes(path, (f"{prefix}{name}" for name in _metadata_names(path / prefix)))
    if record is not None:
        problems += missing_as_recorded(path, record, {problem.file for problem in problems})
    named = _named(path, metadata, record, section)
    every = named.keys
    tied = _tied(metadata, every)
    keys = {flat: key for flat, key in every.items() if flat not in tied}
    items = Items(path)
    tensors = {
        key: _tensor(items, path, flat, metadata.tensors[flat], files) for flat, key in keys.items()
    }
    problems += mixed_saves(path, metadata, keys, tensors)
    return Checkpoint(
        root=path,
        tensors=tensors,
        origin=_origin(path, metadata, record, named, keys, parts, tied),
        aliases={every[alias].name: every[flat].name for alias, flat in tied.items()}
        | (dict(record.aliases) if record else {}),
        state=BlobTrees(path, metadata.blobs),
        files=files,
        companions=_companions(path) if record else model_sidecars(path),
        problems=problems,
    )


def _load(directory: Path) -> Metadata:
    if (directory / METADATA).exists():
        return read_metadata(directory / METADATA)
    names = _metadata_names(directory)
    if not names:
        raise BadFile(
            f"{directory} has no {METADATA}, which torch writes last: the save was not finished; "
            "take an older checkpoint"
        )
    return _union([read_metadata(directory / name) for name in names], directory)


def _metadata_names(directory: Path) -> list[str]:
    """The global `.metadata`, else those of each rank (`use_collectives=False`)."""
    if (directory / METADATA).exists():
        return [METADATA]
    return sorted(path.name for path in directory.iterdir() if RANK_METADATA.fullmatch(path.name))


def _union(parts: list[Metadata], directory: Path) -> Metadata:
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
    ends: dict[str, int] = {}
    for part in parts:
        ends |= {file: max(end, ends.get(file, 0)) for file, end in part.ends.items()}
    return Metadata(
        tensors,
        blobs,
        paths or None,
        parts[0].version,
        (*tensors, *blobs),
        ends,
        extras,
        any(part.is_megatron for part in parts),
    )


def _within(prefix: str, metadata: Metadata) -> Metadata:
    """The same metadata, with file names counted from the checkpoint's root."""
    if not prefix:
        return metadata

    def moved(item: Item) -> Item:
        return replace(item, file=prefix + item.file)

    tensors = {
        key: replace(saved, parts=tuple((box, moved(item)) for box, item in saved.parts))
        for key, saved in metadata.tensors.items()
    }
    blobs = {key: moved(item) for key, item in metadata.blobs.items()}
    ends = {prefix + file: end for file, end in metadata.ends.items()}
    return replace(metadata, tensors=tensors, blobs=blobs, ends=ends)


def _tied(metadata: Metadata, keys: Mapping[str, Key]) -> dict[str, str]:
    """Flat keys of weights whose bytes are those of another weight that comes before them."""
    first: dict[Item, str] = {}
    found: dict[str, str] = {}
    for flat, saved in metadata.tensors.items():
        if saved.parts and keys[flat].role == "param":
            known = first.setdefault(saved.parts[0][1], flat)
            if known != flat and metadata.tensors[known] == saved:
                found[flat] = known
    return found


def _named(
    path: Path, metadata: Metadata, record: JobRecord | None, section: str | None
) -> NamedKeys:
    if record is None:
        return name_tensors(metadata, path, section)
    if section is not None:
        raise BadRequest(f"{path} is a job's checkpoint, which has one model: leave --section out")
    return NamedKeys(job_keys(metadata.tensors))


def _tensor(
    items: Items, root: Path, flat: str, saved: SavedTensor, files: Mapping[str, int]
) -> Tensor:
    for box, item in saved.parts:
        refuse_safetensors(root, flat, item, box.numel * saved.dtype.itemsize)
    # What lies in a missing file, or behind the end of one that is cut short, is a hole, which the
    # plan names together with the file.
    parts = [
        (box, item)
        for box, item in saved.parts
        if item.offset + item.length <= files.get(item.file, -1)
    ]
    return Tensor(saved.dtype, saved.shape, ItemChunks(items, flat, saved.dtype, parts))


def _origin(
    path: Path,
    metadata: Metadata,
    record: JobRecord | None,
    named: NamedKeys,
    keys: Mapping[str, Key],
    parts: Mapping[str, Metadata],
    tied: Mapping[str, str],
) -> Origin:
    details: dict[str, Any] = {
        "dcp_keys": {key: flat for flat, key in keys.items()},
        "planner_data": metadata.paths,
        "order": metadata.order,
        "blobs": metadata.blobs,
        "dcp_version": metadata.version,
        TIED: tied,
        ATTRIBUTES: metadata.extras,
        OPTIMIZERS: named.optimizers,
        NUMBERED: named.numbered,
    }
    if any(prefix not in ("", f"{DCP}/") for prefix in parts):
        details[DIRECTORIES] = {
            prefix: frozenset((*part.tensors, *part.blobs)) for prefix, part in parts.items()
        }
    if record is not None:
        details |= {
            "job": record,
            "precision": record.precision,
            "replicated": record.replicated,
            "rng": record.rng,
            "steps_total": record.steps_total,
        }
        return Origin(
            "dcp",
            path,
            framework_version=record.torch_version,
            world_size=record.world_size,
            stage=record.stage,
            step=record.step,
            details=details,
        )
    ranks = {match[1] for _, item in metadata.items if (match := _DATA_FILE.fullmatch(item.file))}
    count = counted(len(ranks), "rank")
    notes = (f"{count}, counted from the names of the data files",) if ranks else ()
    return Origin(
        "dcp",
        path,
        world_size=len(ranks) or None,
        notes=(*named.notes, *notes),
        question=named.question,
        refusal=_MEGATRON.format(path=path) if metadata.is_megatron else None,
        details=details,
    )


def _companions(path: Path) -> dict[str, Path]:
    """What a job keeps beside its record and tensors: the model's config and tokenizer."""
    return {
        entry.name: entry
        for entry in sorted(path.iterdir())
        if entry.is_file() and not _OWN.fullmatch(entry.name)
    }
