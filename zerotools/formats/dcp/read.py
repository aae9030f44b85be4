"""Read a DCP directory, or a checkpoint of several DCP directories."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zerotools.core.checkpoint import Checkpoint, Key, Origin, Problem
from zerotools.core.dtypes import PRECISIONS
from zerotools.core.errors import BadFile, BadRequest
from zerotools.formats.dcp.kept_for_writer import DcpNative
from zerotools.formats.dcp.name_flat_keys import NamedKeys, job_keys, name_tensors
from zerotools.formats.dcp.several_directories import dcp_prefixes
from zerotools.io.distcp.check_data_files import data_files, existing_sizes, mixed_saves
from zerotools.io.distcp.dcp_directory import (
    joined_metadata,
    load_metadata,
    metadata_names,
    saving_ranks,
    tensor_of,
    with_prefix,
)
from zerotools.io.distcp.dcp_file_names import METADATA
from zerotools.io.distcp.item_chunks import BlobTrees, Items
from zerotools.io.distcp.metadata import Item, Metadata
from zerotools.io.files.tolerated_damage import raise_or_record, record_lost_unnamed
from zerotools.io.huggingface.model_sidecars import model_sidecars
from zerotools.runs.job_checkpoint_file_names import DCP, MANIFEST, RECORD

if TYPE_CHECKING:  # few checkpoints are of a job
    from zerotools.runs.training_record import JobRecord

_MEGATRON = (
    "{path} is a Megatron torch_dist checkpoint, but lacks its common.pt and metadata.json, which "
    "describe the tensors; copy both files from the original into it"
)
_OWN = re.compile(r"job\.json|rank_\d+\.json|MANIFEST\.json|\.zerotools-.*")


def read(path: Path, *, section: str | None = None) -> Checkpoint:
    """Return the checkpoint in `path`: a directory with `.metadata`, a job's `step-N`, or a
    directory in which accelerate saved a model and its optimizer.

    `section` selects one of several models. If there are several and none is selected, all tensors
    have their flat keys as names, and `origin.question` asks the user. Only `.metadata` (or,
    without it, all `__R.metadata`) and the file sizes are read; items are opened when the chunks of
    a tensor are accessed.

    Raises:
        BadRequest: the directory or the section does not exist.
        BadFile: `path` holds no finished DCP checkpoint, or a damaged one.
        Unsupported: the positions of items cannot be found, or an item has an unknown dtype.
    """
    if not path.is_dir():
        raise BadRequest(f"{path} is not a directory; name the directory of the checkpoint")
    record = _record(path)
    found, unfinished = dcp_prefixes(path)
    parts = _parts(path, found)
    metadata = joined_metadata(list(parts.values()), path)
    data = data_files(path, metadata)
    files, problems = data.sizes, [*data.problems, *unfinished]
    for prefix in parts:
        files |= existing_sizes(path, (f"{prefix}{name}" for name in metadata_names(path / prefix)))
    if record is not None:
        problems += missing_as_recorded(path, record, {problem.file for problem in problems})
    named = _named(path, metadata, record, section)
    every = named.keys
    tied = _tied(metadata, every)
    keys = {flat: key for flat, key in every.items() if flat not in tied}
    items = Items(path, metadata)
    tensors = {
        key: tensor_of(items, path, flat, metadata.tensors[flat], files)
        for flat, key in keys.items()
    }
    problems += mixed_saves(path, metadata, keys, tensors)
    return Checkpoint(
        root=path,
        tensors=tensors,
        origin=_origin(path, metadata, record, named, data.notes),
        native=_native(metadata, record, named, keys, parts, tied),
        aliases={every[alias].name: every[flat].name for alias, flat in tied.items()}
        | (dict(record.aliases) if record else {}),
        state=BlobTrees(path, metadata.blobs),
        files=files,
        model_sidecars=_job_sidecars(path) if record else model_sidecars(path),
        problems=problems,
        archives=metadata.empty_archives(),
    )


def _parts(path: Path, prefixes: Sequence[str]) -> dict[str, Metadata]:
    """Return the metadata of each DCP directory, keyed by the directory's path. The model's
    directory comes first.

    If damage is tolerated, the metadata of the optimizer's directory may be missing.
    """
    parts: dict[str, Metadata] = {}
    for prefix in prefixes:
        try:
            parts[prefix] = with_prefix(prefix, load_metadata(path / prefix))
        except BadFile as error:
            if not parts:
                raise
            raise_or_record(path / prefix / METADATA, error)
    return parts


def _record(path: Path) -> JobRecord | None:
    """Return the record (job.json) of the zerotools job that saved the checkpoint.

    Return None if no job saved the checkpoint, or if the record is damaged and damage is tolerated.
    """
    try:
        if (path / RECORD).exists():
            from zerotools.runs.training_record import read_record

            return read_record(path)
        if not _had_record(path):
            return None
        raise BadFile(
            f"{path / RECORD} is missing, but {MANIFEST} lists it: only this file records tied "
            "weights and adapters; copy or download it again"
        )
    except BadFile as error:
        raise_or_record(path / RECORD, error)
        record_lost_unnamed(path / RECORD)  # the tied names are lost
        return None


def _had_record(path: Path) -> bool:
    if not (path / MANIFEST).is_file():
        return False
    from zerotools.runs.manifest import read_manifest

    try:
        return RECORD in read_manifest(path)
    except BadFile:
        return False


def _tied(metadata: Metadata, keys: Mapping[str, Key]) -> dict[str, str]:
    """Return {flat key: flat key of an earlier weight with the same bytes}."""
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


def _native(
    metadata: Metadata,
    record: JobRecord | None,
    named: NamedKeys,
    keys: Mapping[str, Key],
    parts: Mapping[str, Metadata],
    tied: Mapping[str, str],
) -> DcpNative:
    directories = {
        prefix: frozenset((*part.tensors, *part.blobs)) for prefix, part in parts.items()
    }
    return DcpNative(
        flat_keys={key: flat for flat, key in keys.items()},
        paths=metadata.paths,
        order=metadata.order,
        blobs=metadata.blobs,
        tied=tied,
        attributes=metadata.extras,
        optimizers=named.optimizers,
        numbered=named.numbered,
        directories=directories if set(parts) - {"", f"{DCP}/"} else {},
        job=record,
    )


def _of_base(record: JobRecord) -> Iterator[str]:
    base = None if record.lora is None else record.lora.base
    if base is not None:
        yield (
            f"holds only adapters; their base model is {base.path}, which the run kept in "
            f"{base.precision}; zerotools merges them into the weights of that directory"
        )


def _origin(
    path: Path,
    metadata: Metadata,
    record: JobRecord | None,
    named: NamedKeys,
    odd: tuple[str, ...],
) -> Origin:
    if record is not None:
        return Origin(
            "dcp",
            path,
            framework_version=record.torch_version,
            world_size=record.world_size,
            stage=record.stage,
            step=record.step,
            precision=PRECISIONS.get(record.precision),
            notes=(*_of_base(record), *odd),
        )
    ranks = saving_ranks(metadata)
    return Origin(
        "dcp",
        path,
        world_size=ranks or None,
        notes=(*named.notes, *odd),
        question=named.question,
        refusal=_MEGATRON.format(path=path) if metadata.is_megatron else None,
    )


def _job_sidecars(path: Path) -> dict[str, Path]:
    there = {entry.name: entry for entry in sorted(path.iterdir()) if entry.is_file()}
    own = {name: entry for name, entry in there.items() if not _OWN.fullmatch(name)}
    return {**model_sidecars(path), **own}


def missing_as_recorded(path: Path, record: JobRecord, known: set[str | None]) -> list[Problem]:
    """Return a problem for each file that the manifest or record of a job lists, if the file is
    missing or its size differs. No file content is read.
    """
    from zerotools.runs.find_job_checkpoints import rng_name
    from zerotools.runs.manifest import verify_manifest

    problems = [p for p in verify_manifest(path, digests=False) if p.file not in known]
    said = {problem.file for problem in problems}
    for rank in range(record.random_states):
        name = rng_name(rank)
        if name not in said and not (path / name).is_file():
            message = (
                f"{path / name} is missing, but {RECORD} lists {record.world_size} such files; "
                "copy or download it again"
            )
            return [*problems, Problem(message, name)]
    return problems
