"""Search for sets of changes that make a training fit into memory, cheapest first. Every change of
a set is needed.

`zerotools estimate`, `zerotools init` and the daemon's refusals use this search. Changes are
ordered by their cost. Each costs more than all changes above it together:

    activation checkpointing, micro batch, chunked loss, 8-bit optimizer    a step computes more
    optimizer on the host, weights on the host, optimizer on disk           a step moves more data
    LoRA, and its base model in 4 bits                      trains adapters in place of all weights
    sequence ranks, tensor ranks                            ranks compute together
    fewer GPUs                                              only if none of the above helps
    more GPUs

The ZeRO stage has no cost: the lowest stage that fits is taken. Memory that does not depend on the
micro batch is computed once for each layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from itertools import product
from math import isqrt
from typing import Any

from zerotools.core.training_memory_layout import NF4, SHARDED, MemoryLayout
from zerotools.ops.estimate.activation_memory import MicroBatch
from zerotools.ops.estimate.offload_table import (
    ALL,
    ALL_DISK,
    DISK,
    NONE,
    OFFLOAD_KEYS,
    OFFLOADS,
    OPTIMIZER,
    PARAMS,
    STAGES,
    Row,
    Workload,
    is_possible,
    layout_of,
    row_of_layout,
    stage_shards_more,
)
from zerotools.ops.estimate.parameter_shapes import cut_by_tensor_ranks, with_adapters
from zerotools.ops.estimate.rank_memory import GPUS_OF_A_NODE, HeldMemory, Machine, held_by

LORA_RANK = 16
MOST_GPUS = 1 << 12
_TENSOR_FAMILIES = frozenset(
    {"llama", "mistral", "granite", "smollm3", "qwen2", "qwen3", "gemma", "olmo2"}
)
"""Families with a `tp_plan` in transformers that divides all matrices of their blocks."""


class Slowdown(Enum):
    """A rule of thumb for how much slower a training step becomes. It was not measured."""

    NONE = "none"
    SLIGHT = "slight"
    THIRD = "third"
    DOUBLE = "double"
    SEVERAL = "several"

    @property
    def words(self) -> str:
        """The slowdown as a phrase for a sentence."""
        return _SLOWDOWN_WORDS[self]


_SLOWDOWN_WORDS = {
    Slowdown.NONE: "as fast",
    Slowdown.SLIGHT: "a few percent slower",
    Slowdown.THIRD: "about a third slower",
    Slowdown.DOUBLE: "up to twice as slow",
    Slowdown.SEVERAL: "several times slower",
}
_SLOWDOWNS = tuple(Slowdown)


class FitChange(Enum):
    """A change of the settings that saves memory. The members are in the order of their cost, the
    cheapest first."""

    CHECKPOINTING = "activation checkpointing"
    MICRO_BATCH = "a smaller micro batch"
    CHUNKED_LOSS = "chunked loss"
    EIGHT_BIT = "an 8-bit optimizer"
    OPTIMIZER_ON_HOST = "the optimizer in host memory"
    WEIGHTS_ON_HOST = "the weights in host memory"
    OPTIMIZER_ON_DISK = "the optimizer on disk"
    LORA = "LoRA"
    PACKED = "the frozen weights in 4 bits (QLoRA)"
    SEQUENCE_RANKS = "sequence ranks"
    TENSOR_RANKS = "tensor ranks"
    FEWER_GPUS = "fewer GPUs"
    MORE_GPUS = "more GPUs"


Changes = tuple[FitChange, ...]

_COSTS = {
    FitChange.CHECKPOINTING: Slowdown.THIRD,
    FitChange.OPTIMIZER_ON_HOST: Slowdown.DOUBLE,
    FitChange.WEIGHTS_ON_HOST: Slowdown.SEVERAL,
    FitChange.OPTIMIZER_ON_DISK: Slowdown.SEVERAL,
    FitChange.FEWER_GPUS: Slowdown.SEVERAL,
    FitChange.TENSOR_RANKS: Slowdown.DOUBLE,
    FitChange.LORA: Slowdown.NONE,
    FitChange.MORE_GPUS: Slowdown.NONE,
}
_OFFLOADED = {
    NONE: (),
    OPTIMIZER: (FitChange.OPTIMIZER_ON_HOST,),
    PARAMS: (FitChange.WEIGHTS_ON_HOST,),
    ALL: (FitChange.OPTIMIZER_ON_HOST, FitChange.WEIGHTS_ON_HOST),
    DISK: (FitChange.OPTIMIZER_ON_DISK,),
    ALL_DISK: (FitChange.WEIGHTS_ON_HOST, FitChange.OPTIMIZER_ON_DISK),
}
_OF_THE_PROGRAM = frozenset(
    (
        FitChange.CHECKPOINTING,
        FitChange.CHUNKED_LOSS,
        FitChange.EIGHT_BIT,
        FitChange.LORA,
        FitChange.PACKED,
    )
)
_ORDER = tuple(FitChange)
_GENTLE = _ORDER[:4]
_FULL, _LORA, _QLORA = (), (FitChange.LORA,), (FitChange.LORA, FitChange.PACKED)


@dataclass(frozen=True)
class Way:
    """A setting that fits into memory, and the changes that lead to it, cheapest first.

    `changes` is empty if the request fits as it is. `work` has the model and the micro batch, and
    `row` has the layout and its memory.
    """

    changes: Changes
    work: Workload = field(repr=False)
    row: Row

    @property
    def slowdown(self) -> Slowdown:
        """The slowdown of the most expensive change."""
        costs = [_COSTS.get(change, Slowdown.SLIGHT) for change in self.changes]
        return max(costs, key=_SLOWDOWNS.index, default=Slowdown.NONE)

    @property
    def words(self) -> str:
        """The changes as a phrase for a sentence."""
        return joined_with_and(self.change_words)

    @property
    def change_words(self) -> list[str]:
        """Each change in words."""
        return [_words(change, self) for change in self.changes]

    @property
    def of_the_program(self) -> str:
        """A phrase with the changes for which a launcher's config has no key. They must be made in
        the training program."""
        return joined_with_and(
            [_words(change, self) for change in self.changes if change in _OF_THE_PROGRAM]
        )

    @property
    def lora_table(self) -> dict[str, dict[str, Any]]:
        """The table `[lora]` of a job that trains adapters in place of all weights; empty if the
        job trains all weights.
        """
        if FitChange.LORA not in self.changes:
            return {}
        packed = {"frozen_precision": NF4} if FitChange.PACKED in self.changes else {}
        return {"lora": {"rank": LORA_RANK, **packed}}

    @property
    def is_as_asked(self) -> bool:
        """True if the setting trains all requested weights on the given GPUs, or on fewer."""
        return not {FitChange.LORA, FitChange.MORE_GPUS} & set(self.changes)

    @property
    def host_bytes(self) -> int:
        """The host memory of all ranks on one node, in bytes."""
        return self.row.host_bytes

    @property
    def disk_bytes(self) -> int:
        """The disk space of all ranks together, in bytes."""
        return self.row.memory.disk * self.row.layout.world_size


@dataclass(frozen=True, kw_only=True)
class AllowedChanges:
    """The changes that the search may make.

    Attributes:
        stages, offloads: the ZeRO stages and kinds of offload to try.
        optimizer: an 8-bit optimizer.
        adapters, packed: adapters in place of all weights; their base model in 4 bits.
        gpus: another number of GPUs.
        allows: a function that can refuse a setting for other reasons than memory.
    """

    stages: Sequence[int] = STAGES
    offloads: Sequence[str] = OFFLOADS
    optimizer: bool = True
    adapters: bool = False
    packed: bool = False
    gpus: bool = True
    allows: Callable[[Way], bool] = lambda _: True


@dataclass(frozen=True)
class Ways:
    """The settings that fit, cheapest first.

    `nearest` is None if a setting fits as requested. Otherwise it is the setting that exceeds the
    available memory by the smallest factor.
    """

    found: tuple[Way, ...]
    nearest: Way | None = None

    @property
    def best(self) -> Way | None:
        """The cheapest setting that fits as requested; None if no setting does."""
        return next((way for way in self.found if way.is_as_asked), None)


def ways_of(work: Workload, machine: Machine, allowed: AllowedChanges | None = None) -> Ways:
    """Search for changes that make `work` fit on `machine`. The offload in `work.layout` is
    ignored: the search begins without it."""
    return _Search(work, machine, allowed or AllowedChanges()).ways()


def joined_with_and(words: Sequence[str]) -> str:
    """Return "a, b and c" for the words a, b, c."""
    return " and ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def _words(change: FitChange, way: Way) -> str:
    micro, layout = way.work.micro, way.row.layout
    if change is FitChange.MICRO_BATCH and micro is not None:
        return f"micro batches of {micro.examples}"
    if change in (FitChange.FEWER_GPUS, FitChange.MORE_GPUS):
        return f"{layout.world_size} GPU{'s' * (layout.world_size > 1)}"
    if change is FitChange.SEQUENCE_RANKS and micro is not None:
        return f"{micro.sequence_ranks} ranks for each sequence"
    if change is FitChange.TENSOR_RANKS:
        return f"{layout.tensor_ranks} ranks for each layer"
    return str(change.value)


class _Search:
    def __init__(self, work: Workload, machine: Machine, allowed: AllowedChanges) -> None:
        self._machine, self._allowed = machine, allowed
        none = replace(work.layout, offload_optimizer="none", offload_params="none")
        self._work = replace(work, layout=none)
        self._found: list[Way] = []
        self._hopeless: dict[tuple[int, int, MemoryLayout], bool] = {}
        self._held: dict[tuple[int, bool, MemoryLayout], HeldMemory] = {}
        self._models: list[object] = []
        self._is_full = all(parameter.is_trained for parameter in work.model.parameters)

    def ways(self) -> Ways:
        self._take(self._sets(_FULL), self._work, self._machine)
        has_full = bool(self._found)
        if not has_full or self._found[0].changes:
            self._take_adapters()
            if not has_full and not self._take_together() and self._allowed.gpus:
                self._take_fewer()
            self._take_more()
        found = Ways(tuple(self._found))
        return found if found.best is not None else replace(found, nearest=self._nearest())

    def _nearest(self) -> Way | None:
        """Return the setting on the given GPUs with the smallest `_excess`."""
        ways = [
            way
            for changes in self._sets(_FULL)
            for way in self._of_stages(_sorted(changes), self._work, self._machine)
        ]
        return min(ways, key=lambda way: _excess(way, self._machine), default=None)

    def _take(
        self,
        sets: Iterable[Changes],
        work: Workload,
        machine: Machine,
        extra: Changes = (),
    ) -> bool:
        """Try each set of changes, and add its setting to the results if it fits. Skip a set if it
        contains all changes of a setting in the results. Return whether any setting was added."""
        before = len(self._found)
        for each in sets:
            changes = _sorted((*each, *extra))
            if any(set(way.changes) <= set(changes) for way in self._found):
                continue
            way = self._first(changes, work, machine)
            if way is not None and self._allowed.allows(way):
                self._found.append(way)
                if not changes:
                    break
        return len(self._found) > before

    def _sets(self, trained: Changes, offloads: Sequence[str] = OFFLOADS) -> Iterator[Changes]:
        """Yield sets of changes that keep the number of GPUs, cheapest first."""
        offloads = [each for each in offloads if each in self._allowed.offloads]
        if not self._machine.on_gpu:
            offloads = [each for each in offloads if each in (NONE, DISK)]
        gentle = [change for change in _GENTLE if self._can(change, trained)]
        for offload in offloads:
            for chosen in product((False, True), repeat=len(gentle)):
                picked = zip(reversed(gentle), chosen, strict=True)
                yield (*(change for change, is_in in picked if is_in), *_OFFLOADED[offload])

    def _can(self, change: FitChange, trained: Changes) -> bool:
        micro, layout = self._work.micro, self._work.layout
        if change is FitChange.EIGHT_BIT:
            can = layout.optimizer == "adamw" and layout.engine == "torch"
            can = can and self._allowed.optimizer
            return can and self._is_full and not trained and layout.tensor_ranks == 1
        if micro is None or self._work.model.architecture is None:
            return False
        if change is FitChange.CHECKPOINTING:
            return not micro.checkpointing
        if change is FitChange.MICRO_BATCH:
            return micro.examples > 1
        return micro.chunked_loss == "auto" and layout.engine == "torch"

    def _take_fewer(self) -> None:
        """Add settings with fewer ranks: the largest smaller number with a setting that fits.

        Fewer ranks need less host memory: each has its own, and at low ZeRO stages its own copy of
        the offloaded state.
        """
        machine = self._machine
        is_spread = machine.node_ranks not in (None, machine.gpus)
        if is_spread or not self._is_free_of_groups():
            return
        most = min(machine.gpus - 1, GPUS_OF_A_NODE)
        for count in range(most, 0, -1):
            work = replace(self._work, layout=replace(self._work.layout, world_size=count))
            fewer = replace(machine, gpus=count, node_ranks=machine.node_ranks and count)
            if self._take(self._sets(_FULL), work, fewer, (FitChange.FEWER_GPUS,)):
                return

    def _is_free_of_groups(self) -> bool:
        micro, layout = self._work.micro, self._work.layout
        sequence_ranks = 1 if micro is None else micro.sequence_ranks
        return layout.tensor_ranks * sequence_ranks == 1 and layout.shard_size is None

    def _take_adapters(self) -> None:
        work, free = self._work, self._allowed
        if not (free.adapters and self._is_full) or work.model.architecture is None:
            return
        can_pack = free.packed and work.layout.engine == "torch" and work.layout.tensor_ranks == 1
        plain = replace(
            work,
            model=with_adapters(work.model, LORA_RANK),
            layout=replace(work.layout, frozen_precision="train", has_adapters=True),
        )
        has_any = self._take(self._sets(_LORA, (NONE,)), plain, self._machine, _LORA)
        if can_pack:
            packed = replace(
                work,
                model=with_adapters(work.model, LORA_RANK, packs_frozen=True),
                layout=replace(work.layout, frozen_precision=NF4, has_adapters=True),
            )
            has_any |= self._take(self._sets(_QLORA, (NONE,)), packed, self._machine, _QLORA)
        if not has_any:  # their optimizer is small wherever it is, so all is moved or nothing
            self._take(self._sets(_LORA, (ALL,)), plain, self._machine, _LORA)

    def _take_together(self) -> bool:
        """Add settings with several ranks that compute one sequence together (sequence ranks) or
        one layer together (tensor ranks). Return whether any was added."""
        work, machine, architecture = self._work, self._machine, self._work.model.architecture
        micro = work.micro
        is_free = self._is_free_of_groups() and work.layout.engine == "torch"
        if not is_free or architecture is None or micro is None:
            return False
        counts = [
            count
            for count in (2, 4, 8)
            if count <= machine.ranks_of_node and machine.gpus % count == 0
        ]
        has_any = False
        for count in counts:
            split = replace(work, micro=replace(micro, sequence_ranks=count))
            if architecture.heads % count == 0 and self._take(
                self._sets(_FULL), split, machine, (FitChange.SEQUENCE_RANKS,)
            ):
                has_any = True
                break
        is_cut = architecture.model_type in _TENSOR_FAMILIES and self._is_full
        if work.layout.optimizer not in ("adamw", "adam", "sgd") or not is_cut:
            return has_any
        for count in counts:
            cut = replace(
                work,
                model=cut_by_tensor_ranks(work.model, count),
                layout=replace(work.layout, tensor_ranks=count),
                micro=replace(micro, tensor_ranks=count),
            )
            sets = (each for each in self._sets(_FULL) if FitChange.EIGHT_BIT not in each)
            if architecture.kv_heads % count == 0 and self._take(
                sets, cut, machine, (FitChange.TENSOR_RANKS,)
            ):
                return True
        return has_any

    def _take_more(self) -> None:
        machine, work = self._machine, self._work
        if not (machine.on_gpu and self._allowed.gpus) or machine.node_ranks is not None:
            return
        again = (FitChange.CHECKPOINTING,) if self._can(FitChange.CHECKPOINTING, _FULL) else ()
        count = 2 * machine.gpus
        while count <= MOST_GPUS:
            larger = replace(work, layout=replace(work.layout, world_size=count))
            more = replace(machine, gpus=count)
            for changes in ((), again):
                if self._take([changes], larger, more, (FitChange.MORE_GPUS,)):
                    return
            count *= 2

    def _first(self, changes: Changes, work: Workload, machine: Machine) -> Way | None:
        """Return the setting with these changes that fits with the largest micro batch, and then at
        the lowest ZeRO stage; None if none fits."""
        best: Way | None = None
        for micro in _micro_batches(work.micro, changes):
            changed = replace(work, micro=micro)
            ways = self._of_stages(changes, changed, machine, skips=True)
            way = next((way for way in ways if way.row.fits is not False), None)
            if way is None:
                break
            best = way
        return best

    def _of_stages(
        self,
        changes: Changes,
        work: Workload,
        machine: Machine,
        *,
        skips: bool = False,
    ) -> Iterator[Way]:
        """Yield a setting with these changes for each ZeRO stage, the lowest first. With `skips`, a
        stage is left out if the training state alone does not fit."""
        offload, layout = _offload_of(changes), work.layout
        if FitChange.EIGHT_BIT in changes:
            layout = replace(layout, optimizer="adamw8bit")
        if FitChange.MICRO_BATCH in changes and layout.engine == "torch":
            layout = replace(layout, accumulate=layout.accumulate or SHARDED)
        micro = next(_micro_batches(work.micro, changes)) if not skips else work.micro
        work = replace(work, layout=layout, micro=micro)
        alone = len(self._allowed.stages) == 1
        for stage in self._allowed.stages:
            if not is_possible(layout, stage, offload):
                continue
            if not alone and not stage_shards_more(layout, stage, offload):
                continue
            chosen = layout_of(work, stage, offload)
            held = self._held_by(work, chosen)
            if skips and self._is_hopeless(work, chosen, machine, held):
                continue
            row = row_of_layout(work, machine, chosen, offload, held)
            yield Way(changes, replace(work, layout=chosen), row)

    def _is_hopeless(
        self, work: Workload, layout: MemoryLayout, machine: Machine, held: HeldMemory
    ) -> bool:
        """Return whether the setting does not fit even without activations."""
        key = (id(work.model), machine.gpus, layout)
        if key not in self._hopeless:
            bare = replace(work, micro=None)
            row = row_of_layout(bare, machine, layout, NONE, held)
            self._hopeless[key] = row.fits is False
        return self._hopeless[key]

    def _held_by(self, work: Workload, layout: MemoryLayout) -> HeldMemory:
        on_gpu = self._machine.on_gpu
        key = (id(work.model), on_gpu, layout)
        if key not in self._held:
            self._models.append(work.model)  # so that no other model gets its id
            held = held_by(work.model.parameters, layout, work.buckets, on_gpu=on_gpu)
            self._held[key] = held
        return self._held[key]


def _sorted(changes: Iterable[FitChange]) -> Changes:
    return tuple(sorted(set(changes), key=_ORDER.index))


def _excess(way: Way, machine: Machine) -> float:
    """Return the needed memory divided by the available memory: the larger of the ratios of the GPU
    and of the host."""
    row = way.row
    on_gpu = row.memory.peak / max(1, machine.gpu_memory) if machine.on_gpu else 0.0
    return max(on_gpu, row.host_bytes / max(1, machine.host_memory))


def _offload_of(changes: Changes) -> str:
    moved = {change for change in changes if change in _MOVES}
    return next(offload for offload, needed in _OFFLOADED.items() if set(needed) == moved)


_MOVES = frozenset(change for needed in _OFFLOADED.values() for change in needed)
assert set(_OFFLOADED) == set(OFFLOAD_KEYS)


def _micro_batches(micro: MicroBatch | None, changes: Changes) -> Iterator[MicroBatch | None]:
    """Yield the micro batches that these changes allow, smallest first. Yield None if `micro` is
    None."""
    if micro is None:
        yield None
        return
    changed = replace(
        micro,
        checkpointing=micro.checkpointing or FitChange.CHECKPOINTING in changes,
        chunked_loss="on" if FitChange.CHUNKED_LOSS in changes else micro.chunked_loss,
    )
    if FitChange.MICRO_BATCH not in changes:
        yield changed
        return
    for count in _divisors(micro.examples)[:-1]:
        yield replace(changed, batch=count * micro.per_example)


def _divisors(count: int) -> list[int]:
    small = [each for each in range(1, isqrt(count) + 1) if count % each == 0]
    return sorted({*small, *(count // each for each in small)})
