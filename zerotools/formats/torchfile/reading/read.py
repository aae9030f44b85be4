"""Reading a torch file, Hugging Face `.bin` shards, or the files of all ranks into a Checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.formats.torch_optimizers import Shape
from zerotools.formats.torchfile.reading.bin_shards import read_shards
from zerotools.formats.torchfile.reading.rank_files import choose_rank_group, read_ranks
from zerotools.formats.torchfile.reading.whole_file import read_single
from zerotools.formats.torchfile.schema.file_names import (
    INDEX,
    SINGLE,
    TRAINING,
    RankGroup,
    numbered_groups,
    rank_groups,
    shards,
)
from zerotools.formats.torchfile.schema.non_model_states import refuse_no_parameter
from zerotools.formats.torchfile.schema.opened_file import OpenedFile, open_file
from zerotools.io.huggingface.model_directory import readable_index
from zerotools.io.huggingface.model_sidecars import model_sidecars
from zerotools.io.huggingface.numbered_files import part_of_a_set, refuse_missing, refuse_unlisted


def read(path: Path) -> Checkpoint:
    """Read the checkpoint in `path`: one file, a directory of Hugging Face `.bin` files, or one
    with a file per rank. Reads pickles, and no tensor data.

    Raises:
        BadRequest: there is nothing at `path`, or several models to choose from.
        BadFile: a file is damaged or missing, or the files disagree.
        Unsupported: tensors that are not cut into blocks, or files that do not say how.
    """
    if not path.exists():
        raise BadRequest(f"{path} does not exist")
    if not path.is_dir():
        return _read_file(path)
    listed = sorted(entry.name for entry in path.iterdir())
    single = [name for name in listed if SINGLE.fullmatch(name)]
    indexes = [name for name in listed if INDEX.fullmatch(name)]
    if len(single or indexes) > 1:
        raise BadRequest(f"{path} has several models: name one of {', '.join(single or indexes)}")
    if single:
        read_one = _read_file(path / single[0])
        origin = replace(read_one.origin, path=path)
        return replace(read_one, origin=origin, model_sidecars=model_sidecars(path))
    weight_map = readable_index(path / indexes[0]) if indexes else None
    if weight_map is not None:
        files = sorted(set(weight_map.values()))
        refuse_missing(path, files)
        refuse_unlisted(path, indexes[0], files, listed)
        return read_shards(path, files, weight_map)
    found = shards(listed)
    if found:
        refuse_missing(path, found)
        return read_shards(path, found, None)
    groups = rank_groups(listed)
    if not groups and TRAINING in listed:
        return replace(_read_file(path / TRAINING), model_sidecars=model_sidecars(path))
    groups = groups or numbered_groups(listed)
    return read_ranks(path, choose_rank_group(path, groups), groups)


def read_state(path: Path, weights: Mapping[str, Shape]) -> Checkpoint:
    """Return the optimizer in one file, of a model with `weights`.

    Raises:
        BadFile: the file is damaged, or holds no optimizer.
        Unsupported: it holds parts of tensors, or objects that are not read.
    """
    opened = open_file(path.parent, path.name)
    if not opened.contents.is_whole:
        raise Unsupported(f"{path} holds the parts of one rank")
    if not opened.contents.groups:
        raise Unsupported(f"{path} does not hold one optimizer of torch")
    return read_single(path, opened, weights)


def _read_file(path: Path) -> Checkpoint:
    """Return the checkpoint of one file, or of all ranks' files if it is one rank's."""
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
            f"{path} holds only the pieces of one rank instead of a whole model: with "
            "FULL_STATE_DICT older releases of accelerate save only rank 0's part of an adapter "
            "in FSDP2. Take adapter_model.safetensors next to it, or a checkpoint saved with "
            "SHARDED_STATE_DICT"
        )
    if not own:
        raise Unsupported(
            f"{path} holds one rank's pieces of sharded tensors, and its name does not say which "
            "files hold the others; name them *_rank_0.pt, *_rank_1.pt, ..."
        )
    return read_ranks(path.parent, own[0], groups)


def _refuse_state(path: Path, opened: OpenedFile) -> None:
    """Refuse a file of state alone, such as a step counter: it is not a model."""
    if opened.contents.moments:
        return
    try:
        refuse_no_parameter(opened.contents.weights)
    except BadFile as error:
        raise BadFile(f"{path}: {error}") from None
