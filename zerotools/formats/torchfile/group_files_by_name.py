"""Find the torch files in a directory that belong together, according to their names.

pytorch_model.bin, adapter_model.bin, pytorch_model_fsdp.bin      one file
pytorch_model.bin.index.json, pytorch_model-00001-of-00002.bin    Hugging Face shards
model_world_size_4_rank_0.pt, optim_world_size_4_rank_0.pt        verl, one per rank
pytorch_model_fsdp_0_rank0.bin, optimizer_0_rank0.bin             accelerate, one per rank
checkpoint.pt                                                     if none of the above exists
trainer_0.pt, trainer_1.pt                                        any name with a rank's number
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

TRAINING = "checkpoint.pt"
INDEX = re.compile(r"[^/]*\.bin\.index\.json")
SINGLE = re.compile(r"((diffusion_)?pytorch_model|adapter_model|pytorch_model_fsdp(_\d+)?)\.bin")
SECOND_MODEL = re.compile(r"pytorch_model_\d+\.bin")  # of several that accelerate saved
SHARD = re.compile(r"(?:diffusion_)?pytorch_model-(\d+)-of-(\d+)\.bin")
_RANK = re.compile(
    r"(?P<stem>.*?)_?(?:world_size_(?P<size>\d+)_)?rank_?(?P<rank>\d+)(?P<end>\.(?:pt|pth|bin))"
)
_OWN_NAME = re.compile(r"(?P<stem>.*?)[._-]?(?P<rank>\d{1,6})(?P<end>\.(?:pt|pth|bin))")
_OTHER = ("extra_state", "random", "rng", "scheduler", "sampler", "scaler", "dataloader")
_TRAILING = re.compile(r"\d*$")


@dataclass
class RankGroup:
    """The files, one for each rank, that together hold one model or one optimizer.

    `size` is the number of ranks, if the file names contain it; else None.
    """

    stem: str
    size: int | None
    files: dict[int, str] = field(default_factory=dict)

    @property
    def is_optimizer(self) -> bool:
        return self.stem.startswith("optim")

    def name_of(self, rank: int) -> str:
        """Return the name of the file of `rank`. The file need not exist."""
        known, name = next(iter(self.files.items()))
        return re.sub(rf"{known}(?=\.\w+$)", str(rank), name)


def rank_groups(names: Iterable[str]) -> list[RankGroup]:
    """Return the groups of rank files that may hold tensors of a model or an optimizer."""
    return _groups(names, _RANK)


def numbered_groups(names: Iterable[str]) -> list[RankGroup]:
    """Return the groups of files with names that end with a number, counted from 0 like ranks.

    The names are of no known program, so only the content shows whether the files are rank files.
    """
    return [group for group in _groups(names, _OWN_NAME) if 0 in group.files]


def _groups(names: Iterable[str], pattern: re.Pattern[str]) -> list[RankGroup]:
    groups: dict[tuple[str, int | None, str], RankGroup] = {}
    for name in sorted(names):
        match = pattern.fullmatch(name)
        if match is None or match["stem"].startswith(_OTHER):
            continue
        said = match.groupdict().get("size")
        size = int(said) if said else None
        key = (match["stem"], size, match["end"])
        groups.setdefault(key, RankGroup(match["stem"], size)).files[int(match["rank"])] = name
    return list(groups.values())


def optimizer_of(model: RankGroup, groups: Iterable[RankGroup]) -> RankGroup | None:
    """Return the group of optimizer files that belongs to a group of model files, or None.

    Both groups must have the same number of ranks. If there are several models, both names must
    have the same number (`pytorch_model_fsdp_1`, `optimizer_1`).
    """
    found = [group for group in groups if group.is_optimizer and group.size == model.size]
    number = _number(model)
    same = [group for group in found if _number(group) == number]
    if len(same) == 1:
        return same[0]
    return found[0] if len(found) == 1 else None


def _number(group: RankGroup) -> str:
    match = _TRAILING.search(group.stem)
    return match[0] if match else ""


def numbered_shards(names: Iterable[str]) -> list[str]:
    """Return the names of the numbered files of a Hugging Face model
    (`pytorch_model-00001-of-00002.bin`).
    """
    return sorted(name for name in names if SHARD.fullmatch(name))
