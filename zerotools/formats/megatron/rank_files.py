"""Legacy rank files: what each rank of a model held, one or two torch files per rank.

Names are local: layer 0 is the first of a pipeline stage, and tensors are the rank's shards. So a
tensor is listed once for each rank, with the rank's directory before its name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from zerotools.core.checkpoint import Checkpoint, Key, Problem, Tensor
from zerotools.core.errors import BadFile, Unsupported
from zerotools.formats.megatron.file_names import RANK, RANK_FILES
from zerotools.formats.megatron.origin import MegatronFacts, disagreement, facts_of, origin_of
from zerotools.io.files.listing import names_in
from zerotools.io.torchzip.pickle_values import StoredTensor
from zerotools.io.torchzip.pt_file import TorchFile

_MOMENTS = ("exp_avg", "exp_avg_sq", "momentum_buffer", "step")
_MASTERS = ("param", "fp32_param", "fp32_from_fp16_params", "shard_fp32_from_float16_groups")
_DEEPEST = 32


def read_ranks(path: Path) -> Checkpoint:
    """The rank files in the directories below `path`, or those in `path` itself.

    Raises:
        BadFile: no file can be read.
    """
    ranks = sorted(filter(RANK.fullmatch, names_in(path)))
    facts = facts_of({})
    tensors: dict[Key, Tensor] = {}
    files: dict[str, int] = {}
    problems: list[Problem] = []
    opened: list[tuple[str, TorchFile]] = []
    for name in _files(path, ranks):
        try:
            opened.append((name, TorchFile.open(path, name)))
        except (BadFile, Unsupported) as error:
            problems.append(Problem(str(error), name))
    if not opened:
        raise BadFile(f"{path}: {problems[0].message if problems else 'no rank has a file'}")
    leaves = {name: list(_leaves(file.tree, ())) for name, file in opened}
    every = (at for found in leaves.values() for at, _ in found)
    has_masters = any(_role(at) == "param" for at in every if not _is_model(at))
    for name, file in opened:
        files[name] = file.size
        tensors |= _tensors(name, file, leaves[name], has_masters=has_masters)
        if name.endswith(RANK_FILES[0]):
            facts = facts_of(file.tree)
            problems += disagreement(path, facts, name)
    problems += _lost(path, ranks, facts)
    origin = origin_of(path, "Megatron legacy rank files", facts, ranks=len(ranks) or 1)
    return Checkpoint(path, tensors, origin, files=files, problems=problems)


def _files(path: Path, ranks: list[str]) -> Iterator[str]:
    for rank in ("", *ranks):
        for name in RANK_FILES:
            if (path / rank / name).exists():
                yield f"{rank}/{name}" if rank else name


def _lost(path: Path, ranks: list[str], facts: MegatronFacts) -> list[Problem]:
    expected = facts.model_parallel
    if expected is None or not 0 < len(ranks) < expected:
        return []
    sizes = " x ".join(f"{short} {facts.sizes[short]}" for short in ("TP", "PP"))
    return [Problem(f"{path} has files of {len(ranks)} ranks, and {sizes} makes {expected}")]


def _tensors(
    name: str,
    file: TorchFile,
    leaves: list[tuple[tuple[str, ...], StoredTensor]],
    *,
    has_masters: bool,
) -> dict[Key, Tensor]:
    before = f"{name.rpartition('/')[0]}/" if "/" in name else ""
    found: dict[Key, Tensor] = {}
    for at, stored in leaves:
        if _is_model(at):
            halved = has_masters and stored.dtype.bits == 16
            key = Key(before + ".".join(at[1:]), "param16" if halved else "param")
        else:
            key = Key(before + ".".join(at), _role(at))
        found[key] = file.tensor(stored)
    return found


def _is_model(at: tuple[str, ...]) -> bool:
    return len(at) > 1 and at[0].rstrip("0123456789") == "model"


def _role(at: tuple[str, ...]) -> str:
    if at[-1] in _MOMENTS:
        return at[-1]
    return "param" if any(part in _MASTERS for part in at) else "state"


def _leaves(value: Any, at: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], StoredTensor]]:
    if isinstance(value, StoredTensor):
        yield at, value
    elif len(at) < _DEEPEST and isinstance(value, Mapping | list | tuple):
        pairs = value.items() if isinstance(value, Mapping) else enumerate(value)
        for key, part in pairs:
            yield from _leaves(part, (*at, str(key)[:4096]))
