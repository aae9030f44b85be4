"""Read a safetensors file, or a directory of safetensors files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Origin, Problem, Tensor
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadFile, BadRequest
from zerotools.core.training_state import TrainingState, weights_dtype
from zerotools.formats.safetensors.choose_model_files import choose_files
from zerotools.formats.safetensors.header import REMARK, Header, read_header
from zerotools.formats.safetensors.merge_rank_shards import (
    HF_METADATA,
    NOTE,
    SHARD,
    is_end_known,
    lost_shards,
    missing_shards,
    name_of_next,
    problems_from_other_files,
    shard_numbers,
    sharded_tensors,
)
from zerotools.io.files.tolerated_damage import (
    raise_or_record,
    record_lost_tensor,
    record_lost_unnamed,
)
from zerotools.io.huggingface.model_index import unread_tensor
from zerotools.io.huggingface.model_sidecars import model_sidecars

_LONGEST_REMARK = 1000


def read(path: Path) -> Checkpoint:
    """Return the weights at `path`: one file, or a directory of files with or without an index.

    `choose_files` selects the files that are read. If each file belongs to one rank, a tensor is
    joined from its blocks in all files.

    Raises:
        BadRequest: `path` does not exist, or it is the file of one rank.
        BadFile: a file is damaged or missing, or the index and the files disagree.
        Unsupported: a tensor has a dtype that zerotools does not know.
    """
    root = path if path.is_dir() else path.parent
    chosen = choose_files(path)
    weight_map = chosen.weight_map
    headers = dict(_headers(root, chosen.names, has_index=weight_map is not None))
    if any(header.starts is not None for header in headers.values()):
        return _read_shards(path, root, headers, chosen.names)
    tensors: dict[Key, Tensor] = {}
    for name, header in headers.items():
        for key, tensor in _tensors(name, header).items():
            if weight_map is not None and weight_map.get(key.name) != name:
                error = BadFile(
                    f"{root / name} holds {key}, but the index does not list it there; copy or "
                    "download the model again"
                )
                raise_or_record(root / name, error)
                continue
            if key in tensors:
                raise BadFile(
                    f"{root / name} holds {key}, which another file also holds; copy or download "
                    "the model again"
                )
            tensors[key] = tensor
    unread = list(_unread(root, headers, weight_map or {}))
    return Checkpoint(
        root=root,
        tensors=_in_order(tensors, weight_map),
        origin=Origin("safetensors", path, notes=(*chosen.notes, *_remarks(headers))),
        files={name: header.file_size for name, header in headers.items()},
        model_sidecars=model_sidecars(root) if path.is_dir() else {},
        problems=[*chosen.problems, *unread],
    )


def _unread(
    root: Path, headers: Mapping[str, Header], weight_map: Mapping[str, str]
) -> Iterator[Problem]:
    """Yield a problem for each tensor that has a known name but cannot be read.

    If damage is tolerated, the tensors are also recorded as lost.
    """
    for name, header in headers.items():
        for tensor, why in header.unread.items():
            yield from unread_tensor(root / name, tensor, why)
    for listed, name in weight_map.items():
        if name not in headers:
            record_lost_tensor(root / name, listed)
        elif listed not in headers[name].entries and listed not in headers[name].unread:
            why = f"{root / name} lacks {listed}, which the index lists"
            yield from unread_tensor(root / name, listed, why)


def _remarks(headers: Mapping[str, Header]) -> list[str]:
    """Return a note with the remark on the weights that zerotools wrote into the files, if there is
    one."""
    found = (header.metadata.get(REMARK) for header in headers.values())
    said = dict.fromkeys(each for each in found if each)
    return [f"remark in the files: {each[:_LONGEST_REMARK]}" for each in said][:1]


def _read_shards(
    path: Path, root: Path, headers: Mapping[str, Header], names: Sequence[str]
) -> Checkpoint:
    """Return the checkpoint in the rank files `names`, one file for each rank. A missing file is
    recorded as a problem.
    """
    if path.is_file():
        raise BadRequest(f"{path} is one rank's part of a model; pass its directory")
    tensors = sharded_tensors(root, headers)
    numbers = shard_numbers(headers)
    if numbers and not is_end_known(root, tensors):
        record_lost_unnamed(root / name_of_next(names))
    beside = root / HF_METADATA
    lost = lost_shards(root, tensors, names)
    known = {key: tensor for key, tensor in tensors.items() if key not in lost.unknown}
    notes = (
        f"{count_text(len(numbers) or len(headers), 'shard')}, according to the file names",
        NOTE,
    )
    return Checkpoint(
        root=root,
        tensors=known,
        origin=Origin(
            "safetensors",
            path,
            world_size=max(numbers, default=len(headers)),
            notes=notes,
        ),
        files={name: header.file_size for name, header in headers.items()},
        model_sidecars=(model_sidecars(beside) if beside.is_dir() else {}) | model_sidecars(root),
        problems=[
            *missing_shards(root, names),
            *problems_from_other_files(root, max(headers), tensors),
            *lost.problems,
            *_unread(root, headers, {}),
        ],
    )


def _headers(root: Path, names: Sequence[str], *, has_index: bool) -> Iterator[tuple[str, Header]]:
    """Yield the header of each file. If damage is tolerated, lost files are skipped.

    Raises:
        BadFile: a file is missing or damaged and damage is not tolerated, or the last rank's file,
            from which the shapes are read, is missing or damaged.
    """
    found: dict[str, Header] = {}
    for name in names:
        try:
            found[name] = _header(root / name)
        except BadFile as error:
            if len(names) == 1:
                raise
            raise_or_record(root / name, error)
            number = SHARD.fullmatch(name)
            if number is not None and int(number[1]) == max(shard_numbers(names)):
                raise BadFile(
                    f"{error}; this last shard has the ends of the tensors, so their shapes are "
                    "not known: copy or download it again"
                ) from None
            if not (has_index or number):
                record_lost_unnamed(root / name)
    if not found:
        raise BadFile(
            f"{root}: {', '.join(names)} cannot be read; copy or download the files again"
        )
    yield from found.items()


def _header(path: Path) -> Header:
    try:
        return read_header(path)
    except FileNotFoundError:
        raise BadFile(
            f"{path} is missing, and its tensors are in no other file; copy or download it again"
        ) from None
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
    keys = (Key(name, "param") for name in weight_map)
    return {key: tensors[key] for key in keys if key in tensors}


def training_of(checkpoint: Checkpoint) -> TrainingState:
    """Return a training state in which only the precision is known: the dtype of most of the
    weights.
    """
    return TrainingState(precision=weights_dtype(checkpoint))
