"""Read legacy rank files, one or two torch files per rank, and merge the tensors of all ranks.

    mp_rank_00_001/model_optim_rng.pt    model (or model0, model1, ...: one for each virtual stage)
    mp_rank_00_001/distrib_optim.pt      the distributed optimizer's state

Numbers in names are local: layer 0 is the first layer of a pipeline stage, and expert 0 is the
first expert of an expert-parallel rank. In the whole model, layers are counted through virtual
stage 0 of every pipeline stage, then through virtual stage 1, and so on. A tensor that several
ranks hold whole has replicas.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from zerotools.core.checkpoint import Checkpoint, Problem
from zerotools.core.errors import BadFile, Unsupported
from zerotools.formats.megatron.file_names import RANK
from zerotools.formats.megatron.legacy_ranks.merge_ranks import WholeModel, first_layers, weights_of
from zerotools.formats.megatron.legacy_ranks.rank_optimizer import (
    Local,
    Unproved,
    flat_state,
    numbered_state,
)
from zerotools.formats.megatron.legacy_ranks.rank_positions import (
    Degrees,
    RankPlace,
    SavedRank,
    degrees_of,
    model_of,
    optimizer_of,
    rank_positions,
)
from zerotools.formats.megatron.torch_dist_keys import is_buffer
from zerotools.formats.megatron.training_state import (
    MegatronFacts,
    MegatronNative,
    aliases_of,
    facts_of,
    groups_in,
    iteration_problem,
    optimizers_in,
    origin_of,
)
from zerotools.io.distcp.check_data_files import existing_sizes
from zerotools.io.files.directory_entries import names_in
from zerotools.io.huggingface.model_sidecars import model_sidecars
from zerotools.io.torchzip.pt_file import TorchFile

_LEFT_OUT = (
    "masters and moments are left out: they are listed by number or are in flat buffers that do "
    "not match the weights, so their names are not known ({})"
)


def read_ranks(path: Path) -> Checkpoint:
    """Return the model of all ranks with directories below `path` or, if `path` is the directory of
    one rank, the model of this rank.

    Raises:
        BadFile: no file can be read, or the ranks contradict each other.
        Unsupported: it is unknown how a tensor is divided among the ranks.
    """
    names = list(filter(RANK.fullmatch, names_in(path))) or [""]
    opened: dict[str, TorchFile] = {}
    problems: list[Problem] = []
    for name in sorted(names):
        where = model_of(name)
        try:
            opened[name] = TorchFile.open(path, where)
        except (BadFile, Unsupported) as error:
            problems.append(Problem(str(error), where, prevents_output=True))
    if not opened:
        raise BadFile(f"{path}: {problems[0].message if problems else 'no rank has a file'}")
    facts = facts_of(next(iter(opened.values())).tree)
    degrees = degrees_of(facts)
    expected = rank_positions(degrees) if names != [""] else {"": RankPlace(0, 0, 0, 0)}
    ranks = [
        SavedRank(name, expected[name], file, facts_of(file.tree))
        for name, file in opened.items()
        if name in expected
    ]
    problems += rank_problems(path, facts, degrees, expected, ranks, opened)
    if not ranks:
        raise BadFile(f"{path}: {problems[0].message}")
    optimizers = [optimizer_of(rank.name) for rank in ranks]
    problems += lost_optimizers(path, optimizers, facts)
    merged = WholeModel(path, degrees, facts)
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
        files={file.name: file.size for file in opened.values()} | existing_sizes(path, optimizers),
        model_sidecars=model_sidecars(path),
        problems=problems,
        native=MegatronNative(facts, optimizers_in(facts.tree), ranks[0].file, unread_state),
    )


def _read_each(merged: WholeModel, ranks: list[SavedRank]) -> None:
    """Add the tensors of each rank to the merged model. Optimizer state is added only if it is
    proved on every rank which state belongs to which weight.
    """
    firsts = first_layers(ranks, merged)
    found: list[tuple[RankPlace, list[Local], list[Local]]] = []
    for rank in ranks:
        weights: list[Local] = []
        for number, part in enumerate(rank.chunks()):
            weights += weights_of(merged, rank, part, firsts[number, rank.place.stage])
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


def _state(merged: WholeModel, rank: SavedRank, weights: list[Local]) -> list[Local]:
    """Return the optimizer state for the weights of one rank; an empty list if it cannot be proved
    which state belongs to which weight.
    """
    where = optimizer_of(rank.name)
    try:
        if (merged.path / where).exists():
            file = TorchFile.open(merged.path, where)
            return flat_state(file.tree, weights, file)
        optimizers = optimizers_in(rank.facts.tree)
        return numbered_state(optimizers, weights, rank.file, merged.facts.args)
    except Unproved as error:
        merged.unproved = f"{rank.file.path.parent}: {error}"
        return []


def rank_problems(
    path: Path,
    facts: MegatronFacts,
    degrees: Degrees,
    expected: Mapping[str, RankPlace],
    ranks: list[SavedRank],
    opened: Mapping[str, TorchFile],
) -> Iterator[Problem]:
    """Yield a problem for each rank that is missing, for each rank that the run did not have, and
    for each rank with files from another save.
    """
    for name in expected:
        if name not in opened:
            where = model_of(name)
            if not (path / where).exists():
                said = (
                    f"{path / where} is missing: with {degrees} there are {len(expected)} ranks; "
                    "copy or download it again"
                )
                yield Problem(said, where, prevents_output=True)
    if "" in expected and max(degrees[:3]) > 1:
        yield Problem(
            f"{path} has the files of only one rank, but the run had {degrees}; copy or download "
            "the other files",
            prevents_output=True,
        )
    for name, file in opened.items():
        if name not in expected:
            said = (
                f"{path / file.name} is from another save, because the run had {degrees}; move it "
                "elsewhere"
            )
            yield Problem(said, file.name, prevents_output=True)
    first = ranks[0] if ranks else None
    for rank in ranks:
        if first is not None and rank.facts.iteration != facts.iteration:
            yield Problem(
                f"{path / rank.file.name} is of iteration {rank.facts.iteration}, but "
                f"{path / first.file.name} is of iteration {facts.iteration}: the files are from "
                "two saves; take another checkpoint",
                rank.file.name,
                prevents_output=True,
            )
        elif degrees_of(rank.facts) != degrees:
            yield Problem(
                f"{path / rank.file.name} is from a run with {degrees_of(rank.facts)}, but "
                f"{path / first.file.name if first else path} is from a run with {degrees}; take "
                "another checkpoint",
                rank.file.name,
                prevents_output=True,
            )
    if first is not None:
        yield from iteration_problem(path, facts, first.file.name)


def lost_optimizers(path: Path, names: list[str], facts: MegatronFacts) -> Iterator[Problem]:
    """Yield a problem for each rank without a distributed optimizer file if other ranks have one,
    and a single problem if no rank of a run with the distributed optimizer has one.
    """
    lost = [name for name in names if not (path / name).exists()]
    for name in lost if len(lost) < len(names) else ():
        yield Problem(
            f"{path / name} is missing, but other ranks have one; copy or download it again",
            name,
            prevents_output=True,
        )
    if len(lost) == len(names) and _is_distributed(facts):
        said = "no other file has the masters and moments of the distributed optimizer"
        yield Problem(f"{path / names[0]} is missing: {said}", names[0])


def _is_distributed(facts: MegatronFacts) -> bool:
    """Return whether a rank keeps its optimizer state in a separate file (distrib_optim.pt)."""
    groups = [group for each in optimizers_in(facts.tree) for group in groups_in(each)]
    is_said = facts.args.get("use_distributed_optimizer") is True
    return is_said and bool(groups) and not any("params" in group for group in groups)
