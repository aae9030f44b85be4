"""The parts of Hugging Face model directories that are common to all formats of the weights.

Weights are in one file or in several with an index, next to config and tokenizer files. Names of
several files have numbers, such as `model-00003-of-00009.safetensors`: Hugging Face counts from 1,
some tools from 0.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Problem, Tensor
from zerotools.core.errors import BadFile, BadRequest
from zerotools.core.target import FilePlan, Target
from zerotools.io.files.directory_entries import stays_below_root
from zerotools.io.files.json_file import read_json
from zerotools.io.files.tolerated_damage import (
    is_tolerated,
    raise_or_record,
    record_lost_tensor,
    record_lost_unnamed,
)
from zerotools.io.huggingface.config_json import adapted_config, weights_dtype
from zerotools.io.huggingface.model_sidecars import CONFIG
from zerotools.io.output.files_without_tensors import carried_file, file_of_bytes

ROLES = ("param", "buffer")
_LARGEST_INDEX = 2**28


def keys_by_name(source: Checkpoint, forbidden: Collection[str] = ()) -> dict[str, Key]:
    """Return the key (name and role) of every tensor, keyed by the tensor's name, in the order of
    the source.

    Raises:
        BadRequest: the source has no tensors, a tensor is not a weight, two tensors have one name,
            or a name is forbidden.
    """
    if not source.tensors:
        raise BadRequest(f"{source.origin.path} has no weights to write")
    keys: dict[str, Key] = {}
    for key in source.tensors:
        if key.role not in ROLES:
            raise BadRequest(f"{key} is not a weight, and a model holds only weights")
        if key.name in keys:
            raise BadRequest(f"{keys[key.name]} and {key} cannot both be written as {key.name}")
        if key.name in forbidden:
            raise BadRequest(f"a tensor cannot be called {key.name}; rename it")
        keys[key.name] = key
    return keys


def shards_of(tensors: Mapping[str, Tensor], most: int) -> list[dict[str, Tensor]]:
    """Divide tensors in order into files of at most `most` bytes, as huggingface_hub does.

    A tensor that is larger than a file gets its own file. The file that is being filled then
    continues with the next tensor.

    Raises:
        BadRequest: `most` is less than one byte.
    """
    if most < 1:
        raise BadRequest(f"a shard holds at least 1 byte, not {most}")
    shards: list[dict[str, Tensor]] = []
    current: dict[str, Tensor] = {}
    filled = 0
    for name, tensor in tensors.items():
        if tensor.nbytes > most:
            shards.append({name: tensor})
            continue
        if filled + tensor.nbytes > most:
            shards.append(current)
            current, filled = {}, 0
        current[name] = tensor
        filled += tensor.nbytes
    return [*shards, current] if current else shards


def file_name(stem: str, suffix: str, number: int, count: int) -> str:
    """Return the name of weight file `number` (from 1) of `count` files."""
    return f"{stem}{suffix}" if count == 1 else f"{stem}-{number:05d}-of-{count:05d}{suffix}"


@dataclass(frozen=True, slots=True)
class ModelFileStyle:
    """How a format writes a model directory.

    Attributes:
        stem, suffix: the name of a weight file is `stem`, a number and `suffix`.
        index: the name of the index file.
        encode: plans one file for the tensors of a shard. It returns the plan, and name -> offset
            of each tensor in the file.
    """

    format: str
    stem: str
    suffix: str
    index: str
    encode: Callable[[Mapping[str, Tensor]], tuple[FilePlan, dict[str, int]]]


def lay_out_model(
    source: Checkpoint,
    destination: Path,
    style: ModelFileStyle,
    *,
    max_shard_bytes: int,
    forbidden: Collection[str] = (),
) -> Target:
    """Plan a model directory in `destination`: the weights of `source` in one file, or in several
    with an index, and the sidecar files.

    Raises:
        BadRequest: there is nothing to write, a tensor is not a weight, two tensors have one name,
            a name is forbidden, or the shard size is wrong.
    """
    keys = keys_by_name(source, forbidden)
    shards = shards_of({name: source.tensors[key] for name, key in keys.items()}, max_shard_bytes)
    plans: dict[str, FilePlan] = {}
    tensors: dict[Key, Tensor] = {}
    for number, shard in enumerate(shards, 1):
        file = file_name(style.stem, style.suffix, number, len(shards))
        plans[file], offsets = style.encode(shard)
        for name, tensor in shard.items():
            chunk = Chunk(Box.whole(tensor.shape), file, offsets[name])
            tensors[keys[name]] = Tensor(tensor.dtype, tensor.shape, (chunk,))
    if len(shards) > 1:
        plans[style.index] = index_of(tensors)
    plans |= sidecar_plans(source, tensors.values())
    origin = replace(source.origin, format=style.format, path=destination, notes=())
    sizes = {name: plan.size for name, plan in plans.items()}
    return Target(Checkpoint(destination, tensors, origin, files=sizes), plans)


def index_of(tensors: Mapping[Key, Tensor]) -> FilePlan:
    """Return the plan of the index file, which maps the name of each tensor to its file. Each
    tensor has one chunk.
    """
    total = sum(tensor.nbytes for tensor in tensors.values())
    weight_map = {key.name: tensor.chunks[0].file for key, tensor in sorted(tensors.items())}
    tree = {"metadata": {"total_size": total}, "weight_map": weight_map}
    return file_of_bytes((json.dumps(tree, indent=2, ensure_ascii=False) + "\n").encode())


def sidecar_plans(source: Checkpoint, tensors: Iterable[Tensor]) -> dict[str, FilePlan]:
    """Return plans that copy the sidecar files of the source. Only the dtype of the weights in
    config.json is changed.
    """
    plans: dict[str, FilePlan] = {}
    for name, path in source.model_sidecars.items():
        plans[name] = carried_file(path)
        if name == CONFIG and (text := adapted_config(path, weights_dtype(tensors))) is not None:
            plans[name] = file_of_bytes(text)
    return plans


def readable_index(path: Path) -> dict[str, str] | None:
    """Return the result of `read_index`. If the index is damaged and lost bytes are tolerated,
    return None.
    """
    try:
        return read_index(path)
    except BadFile as error:
        raise_or_record(path, error)
        record_lost_unnamed(path)
        return None


def unread_tensor(path: Path, tensor: str, why: str) -> Iterator[Problem]:
    """Yield the problem that the values of `tensor` cannot be read. Only its name is known, from
    the file at `path` or from its index.

    If lost bytes are tolerated, the tensor is recorded as lost instead, and no problem is yielded.
    """
    if is_tolerated():
        raise_or_record(path, BadFile(why))
        record_lost_tensor(path, tensor)
        return
    exclude = f"--exclude {shlex.quote(tensor)}"
    yield Problem(f"{why}; export the rest with {exclude}", tensor=tensor, is_unread=True)


def read_index(path: Path) -> dict[str, str]:
    """Return the `weight_map` of the index at `path`: tensor name -> file.

    Raises:
        BadFile: the file is not an index, or names files outside of its directory.
    """
    try:
        tree: Any = read_json(path, _LARGEST_INDEX)
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{path} is not JSON: {error!s:.200}") from None
    weight_map = tree.get("weight_map") if isinstance(tree, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise BadFile(f"{path} has no weight_map")
    for name in weight_map.values():
        if not isinstance(name, str) or not stays_below_root(name):
            raise BadFile(f"{path} names {name!r:.80}, which is not a file below its directory")
    return weight_map


_NUMBERED = re.compile(r"(?P<stem>.*-)(?P<number>\d{1,9})-of-(?P<count>\d{1,9})(?P<end>\.\w+)")
_MAX_FILES = 100_000


def set_of(name: str) -> tuple[str, str, str] | None:
    """Return the parts that the names of all files of one model have in common: stem, number of
    files, and suffix.

    Return None if `name` has no number, or if the model has only one file.
    """
    match = _NUMBERED.fullmatch(name)
    if match is None or int(match["count"]) < 2:
        return None
    return match["stem"], match["count"], match["end"]


def missing_files(names: Iterable[str]) -> list[str]:
    """Return the names of the files that are missing, according to the numbers in `names`."""
    found: dict[tuple[str, str, str], dict[int, str]] = {}
    for name in names:
        match, whole = _NUMBERED.fullmatch(name), set_of(name)
        if match is not None and whole is not None:
            found.setdefault(whole, {})[int(match["number"])] = match["number"]
    return [name for whole, numbers in found.items() for name in _missing(whole, numbers)]


def _missing(whole: tuple[str, str, str], numbers: dict[int, str]) -> Iterable[str]:
    stem, count, end = whole
    first, width = min(1, *numbers), len(next(iter(numbers.values())))
    for number in range(first, first + min(int(count), _MAX_FILES)):
        if number not in numbers:
            yield f"{stem}{number:0{width}d}-of-{count}{end}"


def refuse_missing(directory: Path, names: Iterable[str]) -> None:
    """Raise an error if files of a model are missing, according to the numbers in `names`.

    Raises:
        BadFile: names the first missing file. If lost bytes are tolerated, all missing files are
            recorded instead.
    """
    missing = missing_files(names)
    if missing:
        whole = set_of(missing[0])
        count = int(whole[1]) if whole else 0
        more = f" (and {len(missing) - 1} more)" if len(missing) > 1 else ""
        error = BadFile(
            f"{directory / missing[0]} is missing{more}: according to the other names, the "
            f"model has {count} files; copy or download all of them"
        )
        for name in missing:
            raise_or_record(directory / name, error)
            record_lost_unnamed(directory / name)


def refuse_unlisted(
    directory: Path, index: str, listed: Collection[str], present: Iterable[str]
) -> None:
    """Raise an error if the index omits a file that belongs to the same model according to its
    number.

    Raises:
        BadFile: names the first such file.
    """
    sets = {whole for name in listed if (whole := set_of(name)) is not None}
    for name in present:
        if name not in listed and set_of(name) in sets:
            raise BadFile(
                f"{directory / index} does not list {name}, which belongs to the same model "
                "according to its number: one of them is from another save"
            )


def part_of_a_set(path: Path) -> tuple[Problem, ...]:
    """Return the problem that `path` is only one of several files of a model; empty if it is the
    only file.
    """
    whole = set_of(path.name)
    if whole is None:
        return ()
    message = f"{path} is one of the {int(whole[1])} files of a model; name its directory"
    return (Problem(message, path.name),)
