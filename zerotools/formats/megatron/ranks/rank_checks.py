"""Checks of the files of ranks: missing ones, and those of another save."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from zerotools.core.checkpoint import Problem
from zerotools.formats.megatron.groups import groups_in, optimizers_in
from zerotools.formats.megatron.origin import MegatronFacts, disagreement
from zerotools.formats.megatron.ranks.rank_layout import Degrees, RankPlace, degrees_of
from zerotools.formats.megatron.ranks.saved_rank import SavedRank, model_of
from zerotools.io.torchzip.pt_file import TorchFile


def disagreements(
    path: Path,
    facts: MegatronFacts,
    degrees: Degrees,
    expected: Mapping[str, RankPlace],
    ranks: list[SavedRank],
    opened: Mapping[str, TorchFile],
) -> Iterator[Problem]:
    """Yield problems for missing ranks, surplus ranks, and ranks of another save."""
    for name in expected:
        if name not in opened:
            where = model_of(name)
            if not (path / where).exists():
                said = f"{path / where} is missing: {degrees} makes {len(expected)} ranks"
                yield Problem(said, where, blocks=True)
    if "" in expected and max(degrees[:3]) > 1:
        yield Problem(f"{path} has the files of one rank, and the run had {degrees}", blocks=True)
    for name, file in opened.items():
        if name not in expected:
            said = f"{path / file.name} is not a rank of {degrees}: it is from another save"
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
                f"{path / rank.file.name} is of a run with {degrees_of(rank.facts)}, but "
                f"{path / first.file.name if first else path} is of a run with {degrees}",
                rank.file.name,
                blocks=True,
            )
    if first is not None:
        yield from disagreement(path, facts, first.file.name)


def lost_optimizers(path: Path, names: list[str], facts: MegatronFacts) -> Iterator[Problem]:
    """Yield files of the distributed optimizer that some ranks have and others lack."""
    lost = [name for name in names if not (path / name).exists()]
    for name in lost if len(lost) < len(names) else ():
        yield Problem(f"{path / name} is missing, but other ranks have theirs", name, blocks=True)
    if len(lost) == len(names) and _is_distributed(facts):
        said = "only it has the masters and moments of the distributed optimizer"
        yield Problem(f"{path / names[0]} is missing: {said}", names[0])


def _is_distributed(facts: MegatronFacts) -> bool:
    """Return whether a rank's optimizer keeps its state in a separate file."""
    groups = [group for each in optimizers_in(facts.tree) for group in groups_in(each)]
    is_said = facts.args.get("use_distributed_optimizer") is True
    return is_said and bool(groups) and not any("params" in group for group in groups)
