"""Divides the weights of a model into files, and lays out its Hugging Face directory: these files,
their index, and the sidecar files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Tensor
from zerotools.core.errors import BadRequest
from zerotools.core.target import FilePlan, Target
from zerotools.io.huggingface.config_json import (
    DIFFUSERS_STEM,
    adapted_config,
    dtype_for_config,
    is_of_diffusers,
)
from zerotools.io.huggingface.model_sidecars import CONFIG
from zerotools.io.output.files_without_tensors import carried_file, file_of_bytes

ROLES = ("param", "buffer")


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
            raise BadRequest(
                f"{keys[key.name]} and {key} cannot both be written as {key.name}; rename one of "
                "the two"
            )
        if key.name in forbidden:
            raise BadRequest(f"a tensor cannot be called {key.name}; rename it")
        keys[key.name] = key
    return keys


def shards_of(tensors: Mapping[str, Tensor], most: int) -> list[dict[str, Tensor]]:
    """Divide tensors in order into files of at most `most` bytes, as huggingface_hub does.

    A tensor of more than `most` bytes gets its own file. The next tensor goes into the file that
    was being filled before.

    Raises:
        BadRequest: `most` is less than one byte.
    """
    if most < 1:
        raise BadRequest(f"the size of a shard is at least 1 byte, not {most}")
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
    with an index, and the sidecar files. Files with weights of a diffusers model get the names that
    diffusers reads.

    Raises:
        BadRequest: there is nothing to write, a tensor is not a weight, two tensors have one name,
            a name is forbidden, or the shard size is wrong.
    """
    keys = keys_by_name(source, forbidden)
    stem, index, config = style.stem, style.index, source.model_sidecars.get(CONFIG)
    if config is not None and is_of_diffusers(config):
        stem, index = DIFFUSERS_STEM, f"{DIFFUSERS_STEM}{style.suffix}.index.json"
    shards = shards_of({name: source.tensors[key] for name, key in keys.items()}, max_shard_bytes)
    plans: dict[str, FilePlan] = {}
    tensors: dict[Key, Tensor] = {}
    for number, shard in enumerate(shards, 1):
        file = file_name(stem, style.suffix, number, len(shards))
        plans[file], offsets = style.encode(shard)
        for name, tensor in shard.items():
            chunk = Chunk(Box.whole(tensor.shape), file, offsets[name])
            tensors[keys[name]] = Tensor(tensor.dtype, tensor.shape, (chunk,))
    if len(shards) > 1:
        plans[index] = index_of(tensors)
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
        if name == CONFIG and (text := adapted_config(path, dtype_for_config(tensors))) is not None:
            plans[name] = file_of_bytes(text)
    return plans
