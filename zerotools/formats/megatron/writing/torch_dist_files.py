"""Lay out the files of a torch_dist checkpoint: data files, `.metadata`, common.pt.

A chunk is one weight of one layer and one expert or, if the weight is large, some of its rows.
Chunks are small because Megatron reads an archive as a whole, even if a rank needs only a part of
it. Files may have any size, because only `.metadata` records their content.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Chunk, Key, Opaque, Tensor
from zerotools.core.errors import BadRequest
from zerotools.core.target import FilePlan
from zerotools.formats.megatron.writing.resumable_optimizer import WrittenOptimizer
from zerotools.io.distcp.dcp_file_names import METADATA
from zerotools.io.distcp.lay_out_data_file import PlannedFile, archive_of
from zerotools.io.distcp.metadata_writer import WrittenItem, metadata_bytes
from zerotools.io.output.files_without_tensors import file_of_bytes

LARGEST_CHUNK = 2**28


@dataclass(frozen=True)
class StoredTensorPlace:
    """A tensor and its position in the stored tensors.

    `flats` are the keys of the stored tensors that contain `tensor`. In each stored tensor, it is
    the part at `index` along the leading axes; `counts` are the numbers of parts along these axes.
    """

    key: Key
    tensor: Tensor
    flats: Sequence[str]
    index: tuple[int, ...]
    counts: tuple[int, ...]


@dataclass
class StoredFiles:
    """The data files that are planned so far, in the directory `prefix` of the output. `tensors`
    has the output's tensors that are in these files.
    """

    prefix: str
    shard_bytes: int
    chunk_bytes: int = LARGEST_CHUNK
    tensors: dict[Key, Tensor] = field(default_factory=dict)
    _files: list[PlannedFile] = field(default_factory=list)
    _items: dict[str, list[WrittenItem]] = field(default_factory=dict)

    def add(self, place: StoredTensorPlace) -> None:
        """Plan the position of one tensor in the files."""
        tensor = place.tensor
        stored = (*place.counts, *tensor.shape)
        chunks = []
        for box in _pieces(tensor, self.chunk_bytes):
            file = self._file(box.numel * tensor.dtype.itemsize)
            outer = Box((*place.index, *box.start), (*(1 for _ in place.index), *box.shape))
            item, begin = file.add_chunk(tensor.dtype, outer.shape)
            if begin is not None:
                chunks.append(Chunk(box, self.prefix + file.name, begin))
            for flat in place.flats:
                one = WrittenItem(flat, item, tensor.dtype, stored, outer)
                self._items.setdefault(flat, []).append(one)
        self.tensors[place.key] = Tensor(tensor.dtype, tensor.shape, chunks)

    def add_extra_states(self, keys: Sequence[str]) -> None:
        """Plan empty extra states for these keys. All of them share the bytes of one archive."""
        if keys:
            item = self._file(0).add_archive(archive_of(EMPTY))
            for key in keys:
                self._items.setdefault(key, []).append(WrittenItem(key, item))

    def plans(self) -> dict[str, FilePlan]:
        """Return the files keyed by name, relative to the output."""
        plans = {self.prefix + file.name: file.plan() for file in self._files}
        written = [item for items in self._items.values() for item in items]
        paths: Mapping[str, tuple[str | int, ...]] = {flat: (flat,) for flat in self._items}
        return {**plans, self.prefix + METADATA: file_of_bytes(metadata_bytes(written, paths))}

    def _file(self, nbytes: int) -> PlannedFile:
        if not self._files or (
            self._files[-1].size and self._files[-1].size + nbytes > self.shard_bytes
        ):
            self._files.append(PlannedFile(f"__0_{len(self._files)}.distcp"))
        return self._files[-1]


def _pieces(tensor: Tensor, most: int) -> Iterator[Box]:
    """Cut the tensor into pieces of whole rows. A piece has at most `most` bytes unless one row is
    larger."""
    if not tensor.shape or not tensor.numel:
        yield Box.whole(tensor.shape)
        return
    rows, others = tensor.shape[0], tensor.shape[1:]
    each = max(1, most // (prod(others) * tensor.dtype.itemsize))
    for first in range(0, rows, each):
        count = min(each, rows - first)
        yield Box((first, *(0 for _ in others)), (count, *others))


_END = ".weight"
_ATTENTION, _PROJECTION = "self_attention.core_attention", "self_attention.linear_proj"
_NONE = re.compile(r"embedding\..*|output_layer|.*\.router")
EMPTY = [None]
"""The object that stands for an empty extra state. It is saved in a list with one entry."""


def extra_state_keys(place: StoredPlace, counts: tuple[int, ...]) -> Iterator[str]:
    """Yield the keys of the extra states (fp8 scales) that belong to the weight at `place`.

    Layers request extra states when a checkpoint is loaded, by keys such as these; all states are
    empty here:

        decoder.layers.mlp.linear_fc2._extra_state/shard_7_32                      layer 7 of 32
        decoder.layers.mlp.experts.experts.linear_fc2._extra_state/shard_7.3_32.8  its expert 3 of 8
        decoder.final_layernorm._extra_state/shard_0_1                             not stacked

    Every parallel layer requests an extra state under its own name. In Transformer Engine, every
    norm and the attention request one too. An extra state that no layer requests is not read.
    Layers accept None as an empty state. `counts` are the numbers of parts that the stored tensor
    has along its leading axes.

    Source: megatron/core/transformer/utils.py (`make_sharded_object_for_checkpoint`) of 0.16.
    """
    module = place.flat.removesuffix(_END)
    if module == place.flat or _NONE.fullmatch(module):
        return
    where = "shard_0_1"
    if counts:
        where = f"shard_{'.'.join(map(str, place.index))}_{'.'.join(map(str, counts))}"
    yield f"{module}._extra_state/{where}"
    if module.endswith(_PROJECTION):
        yield f"{module.removesuffix(_PROJECTION)}{_ATTENTION}._extra_state/{where}"


_LAYER = re.compile(r"((?:decoder|encoder)\.layers\.)(\d+)\.(.+)", re.S)
_EXPERT = re.compile(r"(.*\.experts\.)local_experts\.(\d+)\.(.+)", re.S)


@dataclass(frozen=True, slots=True)
class StoredPlace:
    """The position of a weight: it is the part at `index` of the tensor that is stored as `flat`.
    `index` is empty if the stored tensor is not stacked.
    """

    flat: str
    index: tuple[int, ...]


@dataclass(frozen=True)
class StoredPlaces:
    """The positions of all weights in the stored tensors.

    Attributes:
        counts: name of a weight -> the numbers of parts that its stored tensor has along the
            leading axes.
        alike: name of a block of layers -> True if its layers have the same weights, so that they
            are stacked.
    """

    counts: Mapping[str, tuple[int, ...]]
    alike: Mapping[str, bool]

    @property
    def is_uniform(self) -> bool:
        return all(self.alike.values())

    def of(self, name: str) -> StoredPlace:
        """Return the position of the weight with this name."""
        return _place(name, self.alike)


def stored_places(path: Path, tensors: Mapping[str, Tensor]) -> StoredPlaces:
    """Return the torch_dist key of each weight in `tensors`, and its position in that key's tensor.

        decoder.layers.7.mlp.linear_fc2.weight
            decoder.layers.mlp.linear_fc2.weight [7]
        decoder.layers.7.mlp.experts.local_experts.3.linear_fc2.weight
            decoder.layers.mlp.experts.experts.linear_fc2.weight [7, 3]

    The layers of a block are stacked if they all have the same weights, because Megatron then
    requests stacked tensors; else each layer has separate keys. Other layers (`mtp.layers.0.`) are
    never stacked. `tensors` has the names of a model on one rank; `path` is the checkpoint, for
    messages.

    Source: megatron/core/transformer/transformer_block.py (`sharded_state_dict`) of 0.12 to 0.16.

    Raises:
        BadRequest: a layer or an expert is missing, or experts of one layer differ in shape.
    """
    blocks: dict[str, dict[int, dict[str, tuple[object, ...]]]] = {}
    for name, tensor in tensors.items():
        if match := _LAYER.fullmatch(name):
            layers = blocks.setdefault(match[1], {})
            layers.setdefault(int(match[2]), {})[match[3]] = (tensor.dtype, tensor.shape)
    for block, layers in blocks.items():
        _refuse_gaps(path, f"{block}N", layers)
    alike = {block: len({tuple(sorted(each.items(), key=_name)) for each in layers.values()}) == 1
             for block, layers in blocks.items()}  # fmt: skip
    parts: dict[str, dict[tuple[int, ...], str]] = {}
    for name in tensors:
        place = _place(name, alike)
        parts.setdefault(place.flat, {})[place.index] = name
    counts: dict[str, tuple[int, ...]] = {}
    for flat, each in parts.items():
        counts |= dict.fromkeys(each.values(), _counts(path, flat, each, tensors))
    return StoredPlaces(counts, alike)


def _name(entry: tuple[str, tuple[object, ...]]) -> str:
    return entry[0]


def _place(name: str, alike: Mapping[str, bool]) -> StoredPlace:
    flat, index = name, list[int]()
    if (match := _LAYER.fullmatch(flat)) and alike[match[1]]:
        flat = match[1] + match[3]
        index.append(int(match[2]))
    if match := _EXPERT.fullmatch(flat):
        flat = f"{match[1]}experts.{match[3]}"
        index.append(int(match[2]))
    return StoredPlace(flat, tuple(index))


def _counts(
    path: Path, flat: str, parts: Mapping[tuple[int, ...], str], tensors: Mapping[str, Tensor]
) -> tuple[int, ...]:
    axes = len(next(iter(parts)))
    counts = tuple(max(index[axis] for index in parts) + 1 for axis in range(axes))
    for axis in range(axes):
        _refuse_gaps(path, flat, {index[axis] for index in parts})
    total = 1
    for count in counts:
        total *= count
    if total != len(parts):
        raise BadRequest(
            f"{path}: {flat} has {len(parts)} parts, but {' x '.join(map(str, counts))} are "
            "needed: layers have different numbers of experts"
        )
    first, *others = parts.values()
    for name in others:
        ours, theirs = tensors[first], tensors[name]
        if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
            raise BadRequest(
                f"{path}: {first} is {ours.dtype} of shape {list(ours.shape)} but {name} is "
                f"{theirs.dtype} of shape {list(theirs.shape)}; Megatron stores them in one "
                "tensor, which has one dtype and shape"
            )
    return counts


def _refuse_gaps(path: Path, what: str, numbers: Mapping[int, object] | set[int]) -> None:
    missing = next((n for n in range(len(numbers)) if n not in numbers), None)
    if missing is not None:
        raise BadRequest(
            f"{path} has {what} with numbers up to {max(numbers)}, but not number {missing}, so "
            "the model is not complete; take another checkpoint"
        )


FORM = "fully_reshardable"
METADATA_JSON = (
    b'{"sharded_backend": "torch_dist", "sharded_backend_version": 1, '
    b'"common_backend": "torch", "common_backend_version": 1}'
)


def common_state(
    arguments: Mapping[str, Any] | None,
    optimizer: WrittenOptimizer | None,
    *,
    iteration: int,
    is_uniform: bool,
    flops: Any = 0,
    scheduler: Any = None,
) -> dict[str, Any]:
    """Return the tree of common.pt, with the values that are not sharded:

        {"args": Namespace, "checkpoint_version": 3.0, "iteration": 10, "content_metadata": {...},
         "num_floating_point_operations_so_far": 0, "opt_param_scheduler": {...},
         "optimizer": {"optimizer": {"param_groups": [...]}, "param_state_sharding_type": ...}}

    With expert parallelism, `optimizer` has one such entry for each of two optimizers, keyed by
    number. `content_metadata` tells Megatron the form of the tensors to request.

    `arguments` are the arguments of the training script, keyed by name. `scheduler` is Megatron's
    saved schedule, or None. `is_uniform` is True if the layers are stacked.

    Source: megatron/training/checkpointing.py,
    megatron/core/dist_checkpointing/serialization.py, 0.16.
    """
    metadata: dict[str, Any] = {"singleton_local_shards": False, "chained_optim_avoid_prefix": True}
    if not is_uniform:
        metadata["non_homogeneous_layers"] = True
    if optimizer is not None:
        metadata["distrib_optim_sharding_type"] = FORM
    tree: dict[str, Any] = {
        "checkpoint_version": 3.0,
        "iteration": iteration,
        "num_floating_point_operations_so_far": flops,
        "content_metadata": metadata,
    }
    if arguments is not None:
        said = {**arguments, "ckpt_format": "torch_dist", "no_save_rng": True}
        said["no_save_optim"] = optimizer is None
        tree["args"] = Opaque("argparse", "Namespace", state=said)
    if optimizer is not None:
        every = [_unsharded(groups) for groups in optimizer.optimizers]
        tree["optimizer"] = every[0] if len(every) == 1 else dict(enumerate(every))
        tree["opt_param_scheduler"] = scheduler or _schedule(optimizer, arguments or {})
    return tree


def _unsharded(groups: tuple[Mapping[str, Any], ...]) -> dict[str, Any]:
    return {
        "optimizer": {"param_groups": [dict(group) for group in groups]},
        "param_state_sharding_type": FORM,
    }


def _schedule(optimizer: WrittenOptimizer, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a learning rate schedule, made from the known values. A run that resumes
    must override it with its own options.
    """
    group = optimizer.optimizers[0][0]
    return {
        "max_lr": group["lr"],
        "min_lr": 0.0,
        "lr_warmup_steps": 0,
        "num_steps": arguments.get("consumed_train_samples") or 0,
        "lr_decay_style": "constant",
        "lr_decay_steps": 1,
        "start_wd": group["weight_decay"],
        "end_wd": group["weight_decay"],
        "wd_incr_style": "constant",
        "wd_incr_steps": 1,
    }
