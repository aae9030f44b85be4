"""Legacy rank files: what each rank of a model held, one or two torch files per rank, put together.

    mp_rank_00_001/model_optim_rng.pt    model (or model0, model1, ...: one for each virtual stage)
    mp_rank_00_001/distrib_optim.pt      the distributed optimizer's state

Names are local: layer 0 is the first of a pipeline stage, expert 0 the first of an expert-parallel
rank. Layers are counted over the stages: first virtual stage 0 of every pipeline stage, then
virtual stage 1, and so on. What several ranks have whole is there as often, as replicas.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Chunk, Key, Problem, Tensor
from zerotools.core.counts import counted
from zerotools.core.errors import BadFile, Unsupported
from zerotools.formats.megatron.file_names import RANK, RANK_FILES
from zerotools.formats.megatron.groups import groups_in, optimizers_in
from zerotools.formats.megatron.native import MegatronNative
from zerotools.formats.megatron.origin import (
    EMBEDDING,
    OUTPUT,
    MegatronFacts,
    aliases_of,
    disagreement,
    facts_of,
    origin_of,
)
from zerotools.formats.megatron.ranks.rank_cuts import Cut, cut_of
from zerotools.formats.megatron.ranks.rank_layout import Degrees, RankPlace, degrees_of, places
from zerotools.formats.megatron.ranks.rank_optimizer import (
    Local,
    Unproved,
    flat_state,
    numbered_state,
)
from zerotools.formats.megatron.tensor_names import is_buffer
from zerotools.io.distcp.data_files import sizes
from zerotools.io.files.listing import names_in
from zerotools.io.huggingface.model_sidecars import model_sidecars
from zerotools.io.torchzip.pt_file import TorchFile
from zerotools.io.torchzip.tensors import as_tensor
from zerotools.io.torchzip.unread import unread

_MODEL, _OPTIMIZER = RANK_FILES
_CHUNK = re.compile(r"model(\d{0,4})")
_LAYER = re.compile(r"((?:.*\.)?layers)\.(\d{1,6})\.(.+)", re.S)
_EXPERT = re.compile(r"(.*\.experts)\.local_experts\.(\d{1,6})\.(.+)", re.S)
_GROUPED = re.compile(r"(.*\.experts)\.(linear_fc[12])\.(weight|bias)(\d{1,6})", re.S)
_JOINED = re.compile(r".*\.experts\.weight[12]", re.S)


@dataclass(frozen=True, slots=True)
class _Rank:
    name: str
    place: RankPlace
    file: TorchFile
    facts: MegatronFacts

    def chunks(self) -> list[Mapping[Any, Any]]:
        """The parts of the model that this rank has, by virtual stage."""
        found = {}
        for name, part in self.facts.tree.items():
            match = _CHUNK.fullmatch(name) if isinstance(name, str) else None
            if match and isinstance(part, Mapping):
                found[int(match[1] or 0)] = part
        return [found[number] for number in sorted(found)]


def read_ranks(path: Path) -> Checkpoint:
    """The model of all ranks whose directories are below `path`, or of the one in `path` itself.

    Raises:
        BadFile: no file can be read, or the ranks contradict each other.
        Unsupported: it is not known how ranks share a tensor.
    """
    names = list(filter(RANK.fullmatch, names_in(path))) or [""]
    opened: dict[str, TorchFile] = {}
    problems: list[Problem] = []
    for name in sorted(names):
        where = f"{name}/{_MODEL}" if name else _MODEL
        try:
            opened[name] = TorchFile.open(path, where)
        except (BadFile, Unsupported) as error:
            problems.append(Problem(str(error), where, blocks=True))
    if not opened:
        raise BadFile(f"{path}: {problems[0].message if problems else 'no rank has a file'}")
    facts = facts_of(next(iter(opened.values())).tree)
    degrees = degrees_of(facts)
    expected = places(degrees) if names != [""] else {"": RankPlace(0, 0, 0, 0)}
    ranks = [
        _Rank(name, expected[name], file, facts_of(file.tree))
        for name, file in opened.items()
        if name in expected
    ]
    problems += _disagreements(path, facts, degrees, expected, ranks, opened)
    if not ranks:
        raise BadFile(f"{path}: {problems[0].message}")
    optimizers = [_optimizer_of(rank.name) for rank in ranks]
    problems += _lost_optimizers(path, optimizers, facts)
    merged = _Merged(path, degrees, facts)
    _read_each(merged, ranks)
    unread_state = "" if merged.unproved is None else _LEFT_OUT.format(merged.unproved)
    tensors = merged.tensors()
    return Checkpoint(
        path,
        tensors,
        origin_of(
            path,
            "Megatron legacy rank files",
            facts,
            ranks=degrees.stages * degrees.tensor,
            notes=merged.notes(unread_state),
        ),
        aliases=aliases_of(facts, tensors),
        files={file.name: file.size for file in opened.values()} | sizes(path, optimizers),
        model_sidecars=model_sidecars(path),
        problems=problems,
        native=MegatronNative(facts, optimizers_in(facts.tree), ranks[0].file, unread_state),
    )


_LEFT_OUT = (
    "masters and moments are left out: they are listed by number or lie in flat buffers, and do "
    "not agree with the weights, so that nothing tells which is whose ({})"
)


def _disagreements(
    path: Path,
    facts: MegatronFacts,
    degrees: Degrees,
    expected: Mapping[str, RankPlace],
    ranks: list[_Rank],
    opened: Mapping[str, TorchFile],
) -> Iterator[Problem]:
    """Ranks that are missing, are too many, or are of another save."""
    for name in expected:
        if name not in opened:
            where = f"{name}/{_MODEL}" if name else _MODEL
            if not (path / where).exists():
                said = f"{path / where} is missing: {degrees} makes {len(expected)} ranks"
                yield Problem(said, where, blocks=True)
    if "" in expected and max(degrees[:3]) > 1:
        yield Problem(f"{path} has the files of one rank, and the run had {degrees}", blocks=True)
    for name, file in opened.items():
        if name not in expected:
            said = f"{path / file.name} is no rank of {degrees}: it is of another save"
            yield Problem(said, file.name, blocks=True)
    first = ranks[0] if ranks else None
    for rank in ranks:
        if first is not None and rank.facts.iteration != facts.iteration:
            yield Problem(
                f"{path / rank.file.name} is of iteration {rank.facts.iteration} and "
                f"{path / first.file.name} of {facts.iteration}: ranks of two saves are mixed; "
                "take another checkpoint",
                rank.file.name,
                blocks=True,
            )
        elif degrees_of(rank.facts) != degrees:
            yield Problem(
                f"{path / rank.file.name} is of a run with {degrees_of(rank.facts)} and "
                f"{path / first.file.name if first else path} of one with {degrees}",
                rank.file.name,
                blocks=True,
            )
    if first is not None:
        yield from disagreement(path, facts, first.file.name)


def _read_each(merged: _Merged, ranks: list[_Rank]) -> None:
    """Add what each rank has; of no rank the optimizer's state, where that of one is not proved."""
    first_layers = _first_layers(ranks, merged)
    found: list[tuple[RankPlace, list[Local], list[Local]]] = []
    for rank in ranks:
        weights: list[Local] = []
        for number, part in enumerate(rank.chunks()):
            weights += _weights(merged, rank, part, first_layers[number, rank.place.stage])
        trained = [weight for weight in weights if not is_buffer(weight.name)]
        state = _state(merged, rank, trained) if merged.unproved is None else []
        found.append((rank.place, weights, state))
    if merged.unproved is not None:
        found = [(place, weights, []) for place, weights, _ in found]
    mastered = {each.name for _, _, state in found for each in state if each.role == "param"}
    for place, weights, state in found:
        for weight in weights:
            role = "param16" if weight.name in mastered else "param"
            merged.add(weight._replace(role="buffer" if is_buffer(weight.name) else role), place)
        for each in state:
            merged.add(each, place)


def _first_layers(ranks: list[_Rank], merged: _Merged) -> dict[tuple[int, int], dict[str, int]]:
    """Of each virtual stage of each stage, the number of its first layer, by what is before the
    number in the names."""
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
        raise BadFile(f"{merged.path} has {there} layers, and its arguments say {said}")
    return found


def _weights(
    merged: _Merged, rank: _Rank, part: Mapping[Any, Any], firsts: Mapping[str, int]
) -> Iterator[Local]:
    """The weights of one part of the model, under their names in the whole."""
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
                    f"{where} is a dict, as before Megatron-Core, which is not read; convert it "
                    "with Megatron-LM's tools/checkpoint/convert.py, and read the result"
                )
            raise Unsupported(f"{where} is {unread(value) or type(value).__name__}")
        if _JOINED.fullmatch(name):
            raise Unsupported(
                f"{where} has all experts of a rank in one tensor (moe_use_legacy_grouped_gemm), "
                "which is not read; save it as torch_dist"
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


def _whole_name(merged: _Merged, rank: _Rank, name: str, firsts: Mapping[str, int]) -> str:
    if name == OUTPUT and merged.facts.is_tied:
        return EMBEDDING
    if match := _LAYER.fullmatch(name):
        name = f"{match[1]}.{int(match[2]) + firsts.get(match[1], 0)}.{match[3]}"
    if match := _GROUPED.fullmatch(name):
        name = f"{match[1]}.local_experts.{match[4]}.{match[2]}.{match[3]}"
    if match := _EXPERT.fullmatch(name):
        count = merged.facts.count("num_experts")
        if count is None and merged.degrees.experts > 1:
            raise Unsupported(f"{rank.file.path} does not say how many experts the model has")
        first = (count or 0) // merged.degrees.experts * rank.place.expert
        name = f"{match[1]}.local_experts.{int(match[2]) + first}.{match[3]}"
    return name


def _state(merged: _Merged, rank: _Rank, weights: list[Local]) -> list[Local]:
    """What the rank's optimizer has of them."""
    where = _optimizer_of(rank.name)
    try:
        if (merged.path / where).exists():
            file = TorchFile.open(merged.path, where)
            return flat_state(file.tree, weights, file)
        optimizers = optimizers_in(rank.facts.tree)
        return numbered_state(optimizers, weights, rank.file, merged.facts.args)
    except Unproved as error:
        merged.unproved = f"{rank.file.path.parent}: {error}"
        return []


def _optimizer_of(rank: str) -> str:
    return f"{rank}/{_OPTIMIZER}" if rank else _OPTIMIZER


def _lost_optimizers(path: Path, names: list[str], facts: MegatronFacts) -> Iterator[Problem]:
    """Files of the distributed optimizer that some ranks have and others lack."""
    lost = [name for name in names if not (path / name).exists()]
    for name in lost if len(lost) < len(names) else ():
        yield Problem(f"{path / name} is missing, and other ranks have theirs", name, blocks=True)
    if len(lost) == len(names) and _is_distributed(facts):
        said = "the distributed optimizer's masters and moments are in it alone"
        yield Problem(f"{path / names[0]} is missing: {said}", names[0])


def _is_distributed(facts: MegatronFacts) -> bool:
    """Whether a rank's optimizer keeps its state in a file of its own."""
    groups = [group for each in optimizers_in(facts.tree) for group in groups_in(each)]
    is_said = facts.args.get("use_distributed_optimizer") is True
    return is_said and bool(groups) and not any("params" in group for group in groups)


class _Merged:
    """The tensors of all ranks as one: what each has, by key."""

    def __init__(self, path: Path, degrees: Degrees, facts: MegatronFacts) -> None:
        self.path, self.degrees, self.facts = path, degrees, facts
        self.unproved: str | None = None
        self.extra_states = 0
        self._found: dict[Key, tuple[Local, Cut, list[Chunk]]] = {}

    def add(self, local: Local, place: RankPlace) -> None:
        """Add what one rank has.

        Raises:
            BadFile: another rank has another shape or type of it.
            Unsupported: it is not known how ranks share it.
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
                f"{self.path / local.file} has {key} as {local.dtype} of shape {local.shape}, and "
                f"{self.path / first.file} as {first.dtype} of shape {first.shape}: the files are "
                "of two runs, or one is damaged"
            )
        for start, box in cut.parts(local.shape, rank, ranks):
            chunks.append(_chunk(local, start, box))

    def notes(self, unread_state: str) -> list[str]:
        """Sentences for the user."""
        found = [unread_state] if unread_state else []
        if self.extra_states:
            said = counted(self.extra_states, "extra state")
            found.append(f"{said} of parallel layers, which are not weights")
        return found

    def tensors(self) -> dict[Key, Tensor]:
        """All of them, in the order of the first rank."""
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
