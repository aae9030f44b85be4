"""Determine the ranks that a directory of legacy rank files must have, and their positions in the
model.

In `mp_rank_TT[_PPP][_EEE]`, TT is the tensor-parallel rank, PPP the pipeline stage and EEE the
expert-parallel rank; PPP and EEE are absent if there is only one. With experts, Megatron writes one
file for each rank of the first expert-data-parallel replica: in each stage, max(TP, ETP x EP)
ranks, numbered from 0. Rank r is tensor-parallel rank r % TP, expert-parallel rank r // ETP % EP,
and expert-tensor-parallel rank r % ETP. For example, with TP 2, EP 2 and ETP 1 the directories are
mp_rank_00_000 and mp_rank_01_001.

Source: megatron/training/checkpointing.py (`get_checkpoint_name`), core/parallel_state.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from zerotools.formats.megatron.file_names import RANK_FILES
from zerotools.formats.megatron.training_state import MegatronFacts
from zerotools.io.torchzip.pt_file import TorchFile


class RankPlace(NamedTuple):
    """The position of one rank: its number `tensor` among the tensor-parallel ranks, `stage` among
    the pipeline stages, `expert` among the expert-parallel ranks, and `expert_tensor` among the
    expert-tensor-parallel ranks.
    """

    tensor: int
    stage: int
    expert: int
    expert_tensor: int


class Degrees(NamedTuple):
    """The degrees of parallelism: the number of ranks, or of stages, for each kind of
    parallelism."""

    tensor: int
    stages: int
    experts: int
    expert_tensor: int

    def __str__(self) -> str:
        names = zip(("TP", "PP", "EP", "ETP"), self, strict=True)
        return " x ".join(f"{name} {n}" for name, n in names if n > 1 and name != "ETP") or "TP 1"


_MOST = 2**20


def degrees_of(facts: MegatronFacts) -> Degrees:
    """Return the degrees of parallelism that the arguments record. A degree that they do not
    record is 1.
    """
    sizes = facts.sizes
    tensor = sizes.get("TP") or 1
    return Degrees(tensor, sizes.get("PP") or 1, sizes.get("EP") or 1, sizes.get("ETP") or tensor)


def rank_positions(degrees: Degrees) -> dict[str, RankPlace]:
    """Return the position of each rank that saves files, keyed by the name of its directory.

    The result is empty if there would be more ranks than any run has.
    """
    if max(degrees) > _MOST or degrees.stages * degrees.tensor * degrees.experts > _MOST:
        return {}
    count = degrees.tensor
    if degrees.experts > 1:
        count = max(count, degrees.expert_tensor * degrees.experts)
    found: dict[str, RankPlace] = {}
    for stage in range(degrees.stages):
        for rank in range(count):
            tensor = rank % degrees.tensor
            expert = rank // degrees.expert_tensor % degrees.experts
            name = f"mp_rank_{tensor:02d}"
            name += f"_{stage:03d}" if degrees.stages > 1 else ""
            name += f"_{expert:03d}" if degrees.experts > 1 else ""
            place = RankPlace(tensor, stage, expert, rank % degrees.expert_tensor)
            found.setdefault(name, place)
    return found


_CHUNK = re.compile(r"model(\d{0,4})")


@dataclass(frozen=True, slots=True)
class SavedRank:
    """One rank with its opened model file. `name` is the rank's directory, and `facts` are the
    values in the file that are not tensors.
    """

    name: str
    place: RankPlace
    file: TorchFile
    facts: MegatronFacts

    def chunks(self) -> list[Mapping[Any, Any]]:
        """Return the parts of the model on this rank, in the order of virtual stages."""
        found = {}
        for name, part in self.facts.tree.items():
            match = _CHUNK.fullmatch(name) if isinstance(name, str) else None
            if match and isinstance(part, Mapping):
                found[int(match[1] or 0)] = part
        return [found[number] for number in sorted(found)]


def model_of(rank: str) -> str:
    """Return the path of the model file in a rank's directory."""
    return f"{rank}/{RANK_FILES[0]}" if rank else RANK_FILES[0]


def optimizer_of(rank: str) -> str:
    """Return the path of the distributed optimizer file in a rank's directory."""
    return f"{rank}/{RANK_FILES[1]}" if rank else RANK_FILES[1]
