"""Merge the tensors of all ranks under their names in the whole model."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Chunk, Key, Tensor
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadFile, Unsupported
from zerotools.formats.megatron.legacy_ranks.rank_optimizer import Local
from zerotools.formats.megatron.legacy_ranks.rank_positions import Degrees, RankPlace, SavedRank
from zerotools.formats.megatron.tensor_parallel_cuts import Cut, cut_of
from zerotools.formats.megatron.torch_dist_keys import megatron_expert_name
from zerotools.formats.megatron.training_state import EMBEDDING, OUTPUT, MegatronFacts
from zerotools.io.torchzip.tree_tensors import as_tensor, why_unread


class WholeModel:
    """The model that is merged from all ranks: each tensor with its parts on the ranks."""

    def __init__(self, path: Path, degrees: Degrees, facts: MegatronFacts) -> None:
        self.path, self.degrees, self.facts = path, degrees, facts
        self.unproved: str | None = None
        self.extra_states = 0
        self._found: dict[Key, tuple[Local, Cut, list[Chunk]]] = {}

    def add(self, local: Local, place: RankPlace) -> None:
        """Add the tensor `local` of one rank, which has the position `place` in the model.

        Raises:
            BadFile: another rank has this tensor with another shape or dtype.
            Unsupported: it is unknown how the tensor is divided among the ranks.
        """
        is_expert = ".local_experts." in local.name
        ranks = self.degrees.expert_tensor if is_expert else self.degrees.tensor
        rank = place.expert_tensor if is_expert else place.tensor
        key = Key(local.name, local.role)
        if key not in self._found:
            try:
                cut = cut_of(local.name, local.shape, ranks, self.facts.args)
            except Unsupported as error:
                raise Unsupported(f"{self.path / local.file}: {error}") from None
            self._found[key] = (local, cut, [])
        first, cut, chunks = self._found[key]
        if (first.shape, first.dtype) != (local.shape, local.dtype):
            raise BadFile(
                f"{self.path / local.file} has {key} as {local.dtype} of shape {local.shape}, but "
                f"{self.path / first.file} has it as {first.dtype} of shape {first.shape}: the "
                "files are from two runs, or one is damaged; take another checkpoint"
            )
        for start, box in cut.parts(local.shape, rank, ranks):
            chunks.append(_chunk(local, start, box))

    def notes(self, unread_state: str) -> list[str]:
        """Return notes for the user on the merged model, for example on optimizer state that is
        left out.
        """
        found = [unread_state] if unread_state else []
        if self.extra_states:
            said = count_text(self.extra_states, "extra state")
            found.append(f"{said} of parallel layers, which are not weights")
        return found

    def tensors(self) -> dict[Key, Tensor]:
        """Return all tensors, in the order in which the first rank has them."""
        found = {}
        for key, (local, cut, chunks) in self._found.items():
            is_expert = ".local_experts." in local.name
            ranks = self.degrees.expert_tensor if is_expert else self.degrees.tensor
            found[key] = Tensor(local.dtype, cut.whole(local.shape, ranks), chunks)
        return found


def _chunk(local: Local, start: tuple[int, ...], box: Box) -> Chunk:
    skipped = sum(a * b for a, b in zip(start, local.strides, strict=True))
    offset = local.offset + skipped * local.dtype.itemsize
    chunk = Chunk(box, local.file, offset, local.strides)
    return Chunk(box, local.file, offset) if chunk.is_contiguous else chunk


_LAYER = re.compile(r"((?:.*\.)?layers)\.(\d{1,6})\.(.+)", re.S)
_EXPERT = re.compile(r"(.*\.experts)\.local_experts\.(\d{1,6})\.(.+)", re.S)
_JOINED = re.compile(r".*\.experts\.weight[12]", re.S)


def first_layers(
    ranks: list[SavedRank], merged: WholeModel
) -> dict[tuple[int, int], dict[str, int]]:
    """Return {(virtual stage, pipeline stage): the number of its first layer in the whole model}.

    A model may have several kinds of layers, so there is a number for each kind, keyed by the text
    before the layer number in names (`decoder.layers`).

    Raises:
        BadFile: the number of layers differs from the number in the arguments.
    """
    counts: dict[tuple[int, int], dict[str, int]] = {}
    for rank in ranks:
        for number, part in enumerate(rank.chunks()):
            known = counts.setdefault((number, rank.place.stage), {})
            for name in part:
                match = _LAYER.fullmatch(name) if isinstance(name, str) else None
                if match:
                    known[match[1]] = max(known.get(match[1], 0), int(match[2]) + 1)
    layers, found = dict[str, int](), {}
    usual = (merged.facts.count("num_layers") or 0) // merged.degrees.stages
    for number in range(1 + max((number for number, _ in counts), default=0)):
        for stage in range(merged.degrees.stages):
            found[number, stage] = dict(layers)
            for before, count in counts.get((number, stage), {"decoder.layers": usual}).items():
                layers[before] = layers.get(before, 0) + count
    said, there = merged.facts.count("num_layers"), layers.get("decoder.layers")
    if said is not None and there is not None and said != there:
        raise BadFile(
            f"{merged.path} has {there} layers, but num_layers in its saved arguments is {said}; "
            "take another checkpoint"
        )
    return found


def weights_of(
    merged: WholeModel, rank: SavedRank, part: Mapping[Any, Any], firsts: Mapping[str, int]
) -> Iterator[Local]:
    """Yield the weights in one rank's part of the model, under the names that they have in the
    whole model.

    Raises:
        Unsupported: a weight is not a tensor, or is a kind of tensor that zerotools does not read.
    """
    for name, value in part.items():
        stored = as_tensor(value)
        if not isinstance(name, str):
            continue
        if name.endswith("_extra_state"):
            merged.extra_states += value is not None
            continue
        where = f"{rank.file.path}: {name[:200]}"
        if stored is None:
            if value is None:
                continue
            if isinstance(value, Mapping):
                raise Unsupported(
                    f"{where} is a dict (Megatron-LM before Megatron-Core), which zerotools "
                    "does not read; convert it with Megatron-LM's tools/checkpoint/convert.py, "
                    "and read the result"
                )
            raise Unsupported(f"{where} is {why_unread(value) or type(value).__name__}")
        if _JOINED.fullmatch(name):
            raise Unsupported(
                f"{where} has all experts of a rank in one tensor "
                "(moe_use_legacy_grouped_gemm), which zerotools does not read; save it as "
                "torch_dist"
            )
        yield Local(
            _whole_name(merged, rank, name, firsts),
            "param",
            stored.dtype,
            stored.shape,
            rank.file.name,
            rank.file.first_byte(stored),
            stored.strides,
        )


def _whole_name(merged: WholeModel, rank: SavedRank, name: str, firsts: Mapping[str, int]) -> str:
    if name == OUTPUT and merged.facts.is_tied:
        return EMBEDDING
    if match := _LAYER.fullmatch(name):
        name = f"{match[1]}.{int(match[2]) + firsts.get(match[1], 0)}.{match[3]}"
    if match := _EXPERT.fullmatch(megatron_expert_name(name)):
        count = merged.facts.count("num_experts")
        if count is None and merged.degrees.experts > 1:
            raise Unsupported(
                f"{rank.file.path} does not record how many experts the model has; take another "
                "checkpoint"
            )
        first = (count or 0) // merged.degrees.experts * rank.place.expert
        name = f"{match[1]}.local_experts.{int(match[2]) + first}.{match[3]}"
    return name
