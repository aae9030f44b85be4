"""The experts of each data-parallel rank, and their names over all ranks.

The ranks of a run are cut into expert-parallel ranks, each with as many experts of a layer as any
other; ranks with the same experts share their partitions. Optimizer files and `param_shapes` use
an expert's number on its rank, expert files its number over all ranks.

Source: DeepSpeed `utils/groups.py`: `_create_expert_and_data_parallel`; `runtime/engine.py`:
`_save_moe_checkpoint`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from zerotools.formats.deepspeed.schema.stacked_experts import StackedExperts

EXPERTS = "deepspeed_experts."
DATA_FIRST = "use_data_before_expert_parallelism"
_EXPERT = re.compile(r"(?P<layer>.*?deepspeed_experts\.)(?P<number>\d+)(?P<rest>\..*)")


@dataclass(frozen=True, slots=True)
class ExpertPlacement:
    """`dp_size` data-parallel ranks over `ep_size` expert-parallel ones: neighbours have
    different experts, or, `data_first`, the same. What all share has one expert-parallel rank."""

    dp_size: int
    ep_size: int = 1
    data_first: bool = False

    @property
    def expert_dp_size(self) -> int:
        """The number of ranks with the same experts."""
        return self.dp_size // self.ep_size

    def of(self, rank: int) -> tuple[int, int]:
        """Return the expert-parallel rank, and which of its partitions `rank` has."""
        if self.data_first:
            return rank // self.expert_dp_size, rank % self.expert_dp_size
        return rank % self.ep_size, rank // self.ep_size

    def ranks_of(self, expert_rank: int) -> range:
        """Return the ranks with its experts, in the order of their parts."""
        if self.data_first:
            return range(expert_rank * self.expert_dp_size, (expert_rank + 1) * self.expert_dp_size)
        return range(expert_rank, self.dp_size, self.ep_size)


@dataclass(frozen=True, slots=True)
class ExpertNaming:
    """The names of experts over all ranks. `local` has the number of experts on one rank, and
    `total` that on all ranks, each by layer and as far as names show; layers may differ. `stacked`
    are AutoEP's, which have one name for all."""

    local: Mapping[str, int] = field(default_factory=dict)
    total: Mapping[str, int] = field(default_factory=dict)
    data_first: bool = False
    stacked: StackedExperts = field(default_factory=StackedExperts)

    @classmethod
    def of(
        cls,
        local: Iterable[str],
        global_name: Iterable[str],
        config: Any,
        stacked: StackedExperts | None = None,
    ) -> ExpertNaming:
        """Make the naming from the names on one rank, those over all ranks, and the run's
        configuration."""
        counts = _counts(local), _counts(global_name)
        return cls(*counts, is_data_first(config), stacked or StackedExperts())

    def global_name(self, name: str, expert_rank: int, ep_size: int) -> str:
        """Return the name over all ranks for the name that `expert_rank` uses."""
        match = _EXPERT.fullmatch(name)
        if match is None:
            return name
        layer = match["layer"]
        # Frozen experts are in no partition, and a file of experts may be lost: the more is right.
        each = max(self.local.get(layer, 0), -(-self.total.get(layer, 0) // ep_size))
        return f"{layer}{expert_rank * each + int(match['number'])}{match['rest']}"


def is_expert(name: str) -> bool:
    """Return whether a parameter belongs to an expert."""
    return _EXPERT.fullmatch(name) is not None


def experts_of_first_rank(names: Iterable[str], ep_size: int) -> list[str]:
    """Return the names that are experts of expert-parallel rank 0, in order; `names` are over all
    ranks."""
    every = [match for name in names if (match := _EXPERT.fullmatch(name))]
    total = _counts(match[0] for match in every)
    return [m[0] for m in every if int(m["number"]) * ep_size < total[m["layer"]]]


def same_weight(name: str, other: str) -> bool:
    """Return whether two names are of the same weight of two experts of a layer."""
    one, two = _EXPERT.fullmatch(name), _EXPERT.fullmatch(other)
    if one is None or two is None:
        return False
    return (one["layer"], one["rest"]) == (two["layer"], two["rest"])


def is_data_first(config: Any) -> bool:
    """Return whether a configuration lets consecutive ranks share their experts."""
    return isinstance(config, Mapping) and config.get(DATA_FIRST) is True


def _counts(names: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for name in names:
        if match := _EXPERT.fullmatch(name):
            known = counts.get(match["layer"], 0)
            counts[match["layer"]] = max(known, 1 + int(match["number"]))
    return counts
