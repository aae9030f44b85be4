"""One rank's opened file of the model."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from zerotools.formats.megatron.file_names import RANK_FILES
from zerotools.formats.megatron.origin import MegatronFacts
from zerotools.formats.megatron.ranks.rank_layout import RankPlace
from zerotools.io.torchzip.pt_file import TorchFile

_CHUNK = re.compile(r"model(\d{0,4})")


@dataclass(frozen=True, slots=True)
class SavedRank:
    """`name` is its directory, `facts` are its file's records."""

    name: str
    place: RankPlace
    file: TorchFile
    facts: MegatronFacts

    def chunks(self) -> list[Mapping[Any, Any]]:
        """Return the parts of the model that this rank has, by virtual stage."""
        found = {}
        for name, part in self.facts.tree.items():
            match = _CHUNK.fullmatch(name) if isinstance(name, str) else None
            if match and isinstance(part, Mapping):
                found[int(match[1] or 0)] = part
        return [found[number] for number in sorted(found)]


def model_of(rank: str) -> str:
    """Return the file of the model of the rank in this directory."""
    return f"{rank}/{RANK_FILES[0]}" if rank else RANK_FILES[0]


def optimizer_of(rank: str) -> str:
    """Return the file of the distributed optimizer of the rank in this directory."""
    return f"{rank}/{RANK_FILES[1]}" if rank else RANK_FILES[1]
