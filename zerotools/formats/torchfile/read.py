"""Read a torch file, Hugging Face `.bin` shards, or the files of all ranks."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import replace
from pathlib import Path

from zerotools.core.checkpoint import Checkpoint, Key, Origin, Problem, Tensor
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.formats.torch_optimizers import Shape
from zerotools.formats.torchfile.group_files_by_name import (
    INDEX,
    SECOND_MODEL,
    SINGLE,
    TRAINING,
    RankGroup,
    numbered_groups,
    numbered_shards,
    rank_groups,
)
from zerotools.formats.torchfile.merge_rank_files import (
    choose_rank_group,
    merge_rank_files,
    rank_aliases,
    read_ranks,
)
from zerotools.formats.torchfile.open_torch_file import (
    FORMAT,
    OpenedFile,
    TorchFileNative,
    float_shapes,
    names_by_number,
    open_file,
    with_keys,
)
from zerotools.formats.torchfile.refuse_non_model import refuse_no_parameter
from zerotools.formats.torchfile.sort_state_dict import STATE_ROLE, FileContents
from zerotools.formats.torchfile.training_state import BUFFER_NAMES
from zerotools.io.files.tolerated_damage import (
    raise_or_record,
    record_lost_tensor,
    record_lost_unnamed,
)
from zerotools.io.huggingface.model_index import (
    part_of_a_set,
    readable_index,
    refuse_missing,
    refuse_unlisted,
    unread_tensor,
)
from zerotools.io.huggingface.model_sidecars import model_sidecars


def read(path: Path) -> Checkpoint:
    """Read the checkpoint in `path`: one file, a directory of Hugging Face `.bin` files, or a
    directory with a file per rank.

    Only pickles are read, no tensor data.

    Raises:
        BadRequest: there is nothing at `path`, or there are several models to choose from.
        BadFile: a file is damaged or missing, or the files disagree.
        Unsupported: tensors are not split into blocks, or the files do not record the blocks.
    """
    if not path.exists():
        raise BadRequest(f"{path} does not exist")
    if not path.is_dir():
        return _read_file(path)
    listed = sorted(entry.name for entry in path.iterdir())
    single = [name for name in listed if SINGLE.fullmatch(name)]
    indexes = [name for name in listed if INDEX.fullmatch(name)]
    if len(single or indexes) > 1:
        raise BadRequest(
            f"{path} has several models: pass the path of one of {', '.join(single or indexes)}"
        )
    if single:
        read_one = _read_file(path / single[0])
        others = [name for name in listed if SECOND_MODEL.fullmatch(name)]
        unread = f"not read, because {single[0]} was taken: {', '.join(others)}"
        notes = (*read_one.origin.notes, *([unread] if others else []))
        origin = replace(read_one.origin, path=path, notes=notes)
        return replace(read_one, origin=origin, model_sidecars=model_sidecars(path))
    weight_map = readable_index(path / indexes[0]) if indexes else None
    if weight_map is not None:
        files = sorted(set(weight_map.values()))
        refuse_missing(path, files)
        refuse_unlisted(path, indexes[0], files, listed)
        return read_shards(path, files, weight_map)
    found = numbered_shards(listed)
    if found:
        refuse_missing(path, found)
        return read_shards(path, found, None)
    groups = rank_groups(listed)
    if not groups and TRAINING in listed:
        return replace(_read_file(path / TRAINING), model_sidecars=model_sidecars(path))
    groups = groups or numbered_groups(listed)
    return read_ranks(path, choose_rank_group(path, groups), groups)


def read_state(path: Path, weights: Mapping[str, Shape]) -> Checkpoint:
    """Return the optimizer in a file that is next to a model; `weights` has the shapes of the
    model's weights.

    Raises:
        BadFile: the file is damaged, or holds no optimizer.
        Unsupported: the file holds parts of tensors, or objects that zerotools does not read.
    """
    opened = open_file(path.parent, path.name)
    if not opened.contents.is_whole:
        raise Unsupported(f"{path} has only one rank's part of the optimizer state")
    if not opened.contents.groups:
        raise Unsupported(f"{path} does not hold the state of one optimizer of torch")
    return read_single(path, opened, weights)


def refuse_unread_optimizers(source: Checkpoint) -> None:
    """Raise Unsupported if `source` has the state of several optimizers, which is not read."""
    native = source.native
    if isinstance(native, TorchFileNative) and native.unread_optimizers:
        raise Unsupported(
            f"{source.origin.path} has several optimizers ({', '.join(native.unread_optimizers)}), "
            "and zerotools reads the state of one: use zerotools consolidate, or convert "
            "--weights-only, to take only the weights"
        )


def _read_file(path: Path) -> Checkpoint:
    """Return the checkpoint in one file. If it is the file of one rank, return the checkpoint in
    the files of all ranks.
    """
    opened = open_file(path.parent, path.name)
    if opened.contents.is_whole:
        _refuse_state(path, opened)
        return replace(read_single(path, opened), problems=part_of_a_set(path))
    if {pieces.ranks for pieces in opened.contents.all() if pieces.kind} == {1}:
        return read_ranks(path.parent, RankGroup(path.stem, 1, {0: path.name}), ())
    names = [entry.name for entry in path.parent.iterdir()]
    groups = rank_groups(names)
    own = [group for group in groups if path.name in group.files.values()]
    if not own:
        groups = numbered_groups(names)
        own = [group for group in groups if path.name in group.files.values()]
    if not own and SINGLE.fullmatch(path.name):
        raise BadFile(
            f"{path} holds only one rank's part of an adapter: old releases of accelerate write "
            "no other part if they use FSDP2 and FULL_STATE_DICT. Take adapter_model.safetensors "
            "next to it, or save with SHARDED_STATE_DICT"
        )
    if not own:
        raise Unsupported(
            f"{path} holds one rank's parts of sharded tensors, and its name does not show "
            "which files hold the others; rename the files to *_rank_0.pt, *_rank_1.pt, ..."
        )
    return read_ranks(path.parent, own[0], groups)


def _refuse_state(path: Path, opened: OpenedFile) -> None:
    """Raise BadFile if a file contains no weights, only state such as a step counter."""
    if opened.contents.moments:
        return
    try:
        refuse_no_parameter(opened.contents.weights)
    except BadFile as error:
        raise BadFile(f"{path}: {error}") from None


def read_shards(path: Path, files: list[str], weight_map: Mapping[str, str] | None) -> Checkpoint:
    """Read all shards in a directory. If there is an index, check that each tensor is in its file.

    Raises:
        BadFile: a file is missing, or the index and the files disagree.
    """
    parts = {name: part for name in files if (part := _readable(path, name, weight_map))}
    if not parts:
        raise BadFile(
            f"{path}: {', '.join(files)} cannot be read; copy or download the files again"
        )
    tensors: dict[Key, Tensor] = {}
    tied: dict[str, str] = {}
    for name, part in parts.items():
        for key in (*part.tensors, *(Key(alias, "param") for alias in part.aliases)):
            if weight_map is not None and weight_map.get(key.name) != name:
                raise BadFile(
                    f"{path / name} holds {key}, but the index does not list it there; copy or "
                    "download the model again"
                )
            if key in tensors or key.name in tied:
                raise BadFile(
                    f"{path / name} holds {key}, which another file also holds; copy or download "
                    "the model again"
                )
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
    """Return the checkpoint in one file, or None if the file is lost and damage is tolerated."""
    try:
        return _read(path, name)
    except BadFile as error:
        raise_or_record(path / name, error)
    for listed, file in (weight_map or {}).items():
        if file == name:
            record_lost_tensor(path / name, listed)
    if weight_map is None:
        record_lost_unnamed(path / name)
    return None


def _read(path: Path, name: str) -> Checkpoint:
    if not (path / name).is_file():
        raise BadFile(
            f"{path / name} is missing, and its tensors are in no other file; copy or download it "
            "again"
        )
    opened = open_file(path, name)
    if not opened.contents.is_whole:
        raise Unsupported(
            f"{path / name} holds one rank's parts of tensors, but its name is that of a shard of "
            "a whole model; take another file"
        )
    return read_single(path / name, opened)


def read_single(
    path: Path, opened: OpenedFile, weights: Mapping[str, Shape] | None = None
) -> Checkpoint:
    """Return the checkpoint in one file; `path` is the path that the user named.

    `weights` are the weights of the model, if the file holds only the model's optimizer.

    Raises:
        BadFile: the file holds no tensors.
    """
    file, contents = opened
    tied = rank_aliases([(file, contents.weights)])
    own = {name: pieces for name, pieces in contents.weights.items() if name not in tied}
    numbered, said = names_by_number(
        contents.groups,
        contents.moments,
        weights if weights is not None else float_shapes(own),
    )
    tensors = with_keys(
        merge_rank_files([(file, contents.weights)]),
        merge_rank_files([(file, contents.moments)]),
        numbered,
        tied,
    )
    buffers = _buffers(contents)
    tensors = {
        Key(n, "buffer") if role == "param" and n in buffers else Key(n, role): tensor
        for (n, role), tensor in tensors.items()
    }
    rest = merge_rank_files([(file, contents.rest)])
    tensors |= {Key(name, STATE_ROLE): tensor for name, tensor in rest.items()}
    if not tensors:
        raise BadFile(f"{path} holds no tensors; name another file")
    return Checkpoint(
        root=file.root,
        tensors=tensors,
        origin=Origin(
            FORMAT,
            path,
            notes=(*_notes(file.name, contents), *([said] if said else [])),
        ),
        native=TorchFileNative(numbered, contents.unread_optimizers),
        aliases=tied,
        state=contents.state,
        files={file.name: file.size},
    )


def _buffers(contents: FileContents) -> Set[str]:
    """Return the names of the buffers if the file lists them next to its weights, as in DeepSpeed's
    model files; else an empty set."""
    listed = contents.state.get(BUFFER_NAMES) if contents.wrapper is not None else None
    names = listed if isinstance(listed, list) else []
    return {name for name in names if isinstance(name, str)}


def _notes(name: str, contents: FileContents) -> list[str]:
    """Return notes for the user: the key below which the file has the weights, and the other
    tensors.
    """
    if contents.wrapper is None:
        return []
    notes = [f"took the weights below {contents.wrapper!r} in {name}"]
    other_names = sorted({key.partition(".")[0] for key in contents.rest})
    if other_names:
        notes.append(f"the other tensors are not weights: {', '.join(other_names)}")
    return notes
