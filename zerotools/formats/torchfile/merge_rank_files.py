"""Read one torch file per rank, and merge the shards at the positions that the pickles record."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, Origin, Problem, Tensor
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.formats.torchfile.group_files_by_name import RankGroup, optimizer_of
from zerotools.formats.torchfile.open_torch_file import (
    FORMAT,
    OpenedFile,
    TorchFileNative,
    float_shapes,
    names_by_number,
    open_file,
    with_keys,
)
from zerotools.formats.torchfile.sharded_tensors import WHOLE, PartialTensor
from zerotools.io.files.regular_files import read_regular
from zerotools.io.files.tolerated_damage import raise_or_record
from zerotools.io.huggingface.model_sidecars import model_sidecars
from zerotools.io.numeric.scalar_tensors import read_scalar
from zerotools.io.torchzip.pickle_values import StoredTensor
from zerotools.io.torchzip.pt_file import TorchFile

_MAX_NAMED = 1000
_VERL_CONFIG, _VERL_MODEL = "fsdp_config.json", "huggingface"
_LARGEST_CONFIG = 2**16
_FEWEST_COMPARED = 3


def choose_rank_group(path: Path, groups: Iterable[RankGroup]) -> RankGroup:
    """Return the group of rank files in a directory that holds a model. There must be only one.

    Raises:
        BadRequest: there are several groups with a model.
        BadFile: no group holds a model.
    """
    models = [group for group in groups if not group.is_optimizer]
    said = _recorded_rank_count(path)
    if len(models) > 1 and said is not None:
        models = [group for group in models if group.size == said] or models
    if len(models) > 1:
        first = ", ".join(next(iter(group.files.values())) for group in models)
        raise BadRequest(
            f"{path} has several models: pass the path of a file of one of them, such as {first}"
        )
    if not models:
        raise BadFile(f"{path} has neither a pytorch_model.bin nor files of a model's ranks")
    return models[0]


def read_ranks(path: Path, model: RankGroup, groups: Sequence[RankGroup]) -> Checkpoint:
    """Return the model in the rank files `model`, with the optimizer saved next to it.

    A missing rank is recorded as a problem, and its parts of tensors are holes.

    Raises:
        BadFile: files are damaged or disagree.
        Unsupported: a file does not record which part of a tensor it holds.
    """
    listed = [model]
    model, parts = _open_all(path, model)
    if not parts:
        raise BadFile(f"{path}: none of the ranks' files can be read; copy or download them again")
    size = _world_size(model, parts)
    parts = _within(model, parts, size)
    _refuse_unaddressed(path, parts)
    optimizer = None if model.is_optimizer else optimizer_of(model, groups)
    moments = list(parts)
    if optimizer is not None:
        listed.append(optimizer)
        optimizer, opened = _open_all(path, optimizer)
        moments += _within(optimizer, opened, size)
    weights = [(file, contents.weights) for file, contents in parts]
    tied = rank_aliases(weights)
    names = {n: p for _, found in weights for n, p in found.items() if n not in tied}
    numbered, said = names_by_number(
        moments[-1].contents.groups, moments[-1].contents.moments, float_shapes(names)
    )
    problems = [problem for group in listed for problem in _problems(path, group, size)]
    problems += _misplaced(parts, model)
    problems += _mixed_steps(path, moments)
    problems += _other_names(path, parts)
    return Checkpoint(
        root=path,
        tensors=with_keys(
            merge_rank_files(weights),
            merge_rank_files([(file, contents.moments) for file, contents in moments]),
            numbered,
            tied,
        ),
        origin=Origin(
            FORMAT,
            path,
            world_size=size,
            notes=_notes(model, parts, said),
        ),
        native=TorchFileNative(numbered, parts[0].contents.unread_optimizers),
        aliases=tied,
        state={**parts[0].contents.state, **moments[-1].contents.state},
        files={file.name: file.size for file, _ in moments},
        model_sidecars=model_sidecars(path)
        | (model_sidecars(path / _VERL_MODEL) if (path / _VERL_MODEL).is_dir() else {}),
        problems=problems,
    )


def _open_all(path: Path, group: RankGroup) -> tuple[RankGroup, list[OpenedFile]]:
    """Open the files of all ranks, in rank order. If damage is tolerated, lost files are removed
    from the group.
    """
    opened = {}
    for rank in sorted(group.files):
        try:
            opened[rank] = open_file(path, group.files[rank])
        except BadFile as error:
            raise_or_record(path / group.files[rank], error)
    kept = {rank: group.files[rank] for rank in opened}
    return replace(group, files=kept), list(opened.values())


def _refuse_unaddressed(path: Path, parts: Sequence[OpenedFile]) -> None:
    if len(parts) > 1 and all(contents.is_whole for _, contents in parts):
        raise Unsupported(
            f"{path} has {len(parts)} files like {parts[0].file.name} with plain tensors, and "
            "nothing shows whether each rank has a copy or a part; to read a single file, pass "
            "its path"
        )


def _world_size(model: RankGroup, parts: Sequence[OpenedFile]) -> int:
    """Return the number of ranks: from the file names, else from the first file that records it,
    else the highest rank in the file names plus 1. Later files may be from an older run.
    """
    if model.size is not None:
        return model.size
    for _, contents in parts:
        said = {pieces.ranks for pieces in contents.all() if pieces.ranks is not None}
        if said:
            return max(said)
    return max(model.files) + 1


def _within(group: RankGroup, parts: Sequence[OpenedFile], size: int) -> list[OpenedFile]:
    """Return the opened files of the ranks below `size`; other files are from a larger run."""
    return [
        part for rank, part in zip(sorted(group.files), parts, strict=True) if rank < size
    ] or list(parts)


def _problems(path: Path, group: RankGroup, size: int) -> Iterable[Problem]:
    present = sum(1 for rank in group.files if rank < size)
    missing = (rank for rank in range(size) if rank not in group.files)
    for rank in islice(missing, _MAX_NAMED):
        name = group.name_of(rank)
        yield Problem(
            f"{path / name} is missing; the run had {count_text(size, 'rank')}; copy or download "
            "it again",
            name,
        )
    if size - present > _MAX_NAMED:
        yield Problem(
            f"{path} lacks the files of {size - present} of {count_text(size, 'rank')}; copy or "
            "download them again"
        )
    for rank in sorted(group.files):
        if rank >= size:
            name = group.files[rank]
            yield Problem(
                f"{path / name} belongs to a run of more than {count_text(size, 'rank')}; move it "
                "elsewhere",
                name,
            )


def _misplaced(parts: Sequence[OpenedFile], model: RankGroup) -> Iterable[Problem]:
    """Yield a problem for each file with tensors that, by their own records, another rank saved."""
    ranks = {name: rank for rank, name in model.files.items()}
    for file, contents in parts:
        said = {pieces.rank for pieces in contents.all() if pieces.rank is not None}
        if said and said != {ranks[file.name]}:
            listed = ", ".join(map(str, sorted(said)))
            yield Problem(
                f"{file.path} was saved by rank {listed}, according to its tensors; put the right "
                "file there",
                file.name,
            )


def _mixed_steps(path: Path, files: Sequence[OpenedFile]) -> Iterable[Problem]:
    """Yield a problem for each file that was saved at a different training step than most of the
    files. The optimizer counts steps for each parameter; one count is read from each file.
    """
    steps: dict[str, int | float] = {}
    for file, contents in files:
        found = (each for (_, role), each in contents.moments.items() if role == "step")
        first = next((each for each in found if not each.shape and each.blocks), None)
        if first is not None and first.kind == WHOLE:
            try:
                steps[file.name] = read_scalar(path, file.tensor(first.blocks[0][1])).value
            except (BadFile, Unsupported):  # reported when the tensor is read
                return
    if len(set(steps.values())) < 2:
        return
    (usual, _), *_ = Counter(steps.values()).most_common(1)
    for name, step in steps.items():
        if step != usual:
            yield Problem(
                f"{path / name} is from step {step:g}, but other files are from step {usual:g}: "
                "files of two saves are mixed; take another checkpoint",
                name,
                prevents_output=True,
            )


def _other_names(path: Path, files: Sequence[OpenedFile]) -> Iterable[Problem]:
    """Yield a problem if exactly one file has other tensor names than all the rest.

    If several files differ, they may be pipeline stages. With only two files, it is unknown which
    one is wrong.
    """
    held = {file.name: frozenset(contents.weights) for file, contents in files}
    (usual, count), *rest = Counter(held.values()).most_common(2)
    if len(held) < _FEWEST_COMPARED or not rest or count != len(held) - 1:
        return
    name = next(name for name, names in held.items() if names != usual)
    lacking, added = sorted(usual - held[name]), sorted(held[name] - usual)
    parts = [
        f"{what} {len(names)} tensors ({', '.join(names[:3])}{', ...' if names[3:] else ''})"
        for what, names in (("lacks", lacking), ("alone has", added))
        if names
    ]
    yield Problem(
        f"{path / name} {' and '.join(parts)}, unlike the files of the {count} other ranks, which "
        "have the same names: it is from another save; take a checkpoint with all files from one "
        "save",
        name,
        prevents_output=True,
    )


def _notes(model: RankGroup, parts: Sequence[OpenedFile], said: str | None) -> tuple[str, ...]:
    kinds = sorted({p.kind for _, contents in parts for p in contents.all() if p.kind})
    notes = (
        [f"{'s and '.join(kinds)}s in {count_text(len(model.files), 'file')}, one per rank"]
        if kinds
        else []
    )
    return (*notes, *([said] if said else []))


def _recorded_rank_count(path: Path) -> int | None:
    """Return the number of ranks that verl's fsdp_config.json records, or None if there is no such
    record."""
    try:
        tree: Any = json.loads(read_regular(path / _VERL_CONFIG, _LARGEST_CONFIG))
    except (OSError, BadFile, ValueError, RecursionError):
        return None
    size = tree.get("world_size") if isinstance(tree, dict) else None
    return size if type(size) is int else None


K = TypeVar("K", bound=Hashable)
FileTensors = tuple[TorchFile, Mapping[K, PartialTensor]]


def merge_rank_files(files: Sequence[FileTensors[K]]) -> dict[K, Tensor]:
    """Return all tensors; each is joined from its blocks in all files.

    If every rank holds a tensor whole, the first rank's copy is used.

    Raises:
        BadFile: two files have a different dtype, shape or kind of one tensor.
    """
    first: dict[K, tuple[TorchFile, PartialTensor]] = {}
    chunks: dict[K, list[Chunk]] = {}
    for file, found in files:
        for key, pieces in found.items():
            known_file, known = first.setdefault(key, (file, pieces))
            _check_agree(key, known_file, known, file, pieces)
            chunks.setdefault(key, []).extend(
                _chunk(file, box, stored) for box, stored in pieces.blocks
            )
    return {
        key: Tensor(pieces.dtype, pieces.shape, tuple(chunks[key]))
        for key, (_, pieces) in first.items()
    }


def _check_agree(
    key: object, known_file: TorchFile, known: PartialTensor, file: TorchFile, pieces: PartialTensor
) -> None:
    ours = (known.dtype, known.shape, known.kind)
    theirs = (pieces.dtype, pieces.shape, pieces.kind)
    if ours != theirs:
        raise BadFile(
            f"{known_file.path} has {key!s:.200} as {_words(known)}, but {file.path} has it as "
            f"{_words(pieces)}; take another checkpoint"
        )


def _words(pieces: PartialTensor) -> str:
    return f"{pieces.dtype} of shape {pieces.shape}, {pieces.kind or 'whole'}"


def _chunk(file: TorchFile, box: Box, stored: StoredTensor) -> Chunk:
    chunk = file.tensor(stored).chunks[0]
    strides = None if chunk.is_contiguous else chunk.strides
    return Chunk(box, chunk.file, chunk.offset, strides)


def rank_aliases(files: Sequence[FileTensors[str]]) -> dict[str, str]:
    """Return {alias: first name} for names that share the same elements in every file that contains
    them.
    """
    tied: dict[str, set[str]] = {}
    for _, found in files:
        places: dict[tuple[object, ...], str] = {}
        for name, pieces in found.items():
            if not pieces.blocks or 0 in pieces.shape:
                continue
            place = (pieces.shape, pieces.dtype, *map(_place, pieces.blocks))
            tied.setdefault(name, set()).add(places.setdefault(place, name))
    return {
        name: canonical.copy().pop()
        for name, canonical in tied.items()
        if len(canonical) == 1 and canonical != {name}
    }


def _place(block: tuple[Box, StoredTensor]) -> tuple[object, ...]:
    box, stored = block
    return (box, stored.storage.key, stored.offset, stored.shape, stored.strides)
