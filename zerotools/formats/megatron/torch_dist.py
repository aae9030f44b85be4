"""A Megatron checkpoint in one directory for all ranks: torch_dist, zarr, and torch's own DCP."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from zerotools.core.checkpoint import Checkpoint, Key, Problem, Tensor
from zerotools.core.errors import BadFile, Unsupported
from zerotools.formats.megatron.file_names import COMMON, CONFIG
from zerotools.formats.megatron.origin import MegatronFacts, disagreement, facts_of, origin_of
from zerotools.io.distcp.data_files import data_files, mixed_saves, sizes
from zerotools.io.distcp.directory import (
    load_metadata,
    metadata_names,
    saving_ranks,
    tensor_of,
)
from zerotools.io.distcp.file_names import METADATA
from zerotools.io.distcp.items import Items
from zerotools.io.files.regular import read_regular
from zerotools.io.torchzip.pt_file import TorchFile

_LARGEST_CONFIG = 2**20
_STATE = re.compile(r"(?:chained_\d+\.)?optimizer\.state\.(?P<role>[^.]+)\.(?P<name>.+)", re.S)
_OPTIMIZER = re.compile(r"(?:chained_\d+\.)?optimizer\.", re.S)
# Both are the fp32 masters, in one form of the optimizer and in another.
_MASTERS = ("fp32_param", "param")


def read_directory(path: Path) -> Checkpoint:
    """What is below `path`, by Megatron's names: masters have the role `param`, and 16-bit weights
    beside them `param16`.

    Raises:
        BadFile: `.metadata` or metadata.json is damaged.
    """
    backend = _backend(path)
    facts, problems = _common(path)
    has_metadata = (path / METADATA).exists()
    tensors: dict[Key, Tensor] = {}
    files: dict[str, int] = {}
    ranks = None
    if has_metadata:
        metadata = load_metadata(path)
        files, found = data_files(path, metadata)
        files |= sizes(path, metadata_names(path))
        keys, items = _named(metadata.tensors), Items(path, metadata)
        tensors = {
            key: tensor_of(items, path, flat, metadata.tensors[flat], files)
            for flat, key in keys.items()
        }
        problems = [*found, *mixed_saves(path, metadata, keys, tensors), *problems]
        ranks = saving_ranks(metadata) or None
    if backend == "torch_dist" and not has_metadata:
        missing = f"{path} has no {METADATA}: the save was not finished"
        problems.append(Problem(missing, METADATA))
    if (path / COMMON).exists() and not (path / CONFIG).exists():
        missing = f"{path} has no {CONFIG}, which is written last: the save was not finished"
        problems.append(Problem(missing, CONFIG))
    for name in (COMMON, CONFIG):
        if (path / name).is_file():
            files[name] = (path / name).stat().st_size
    notes = () if has_metadata else (f"tensors of the {backend} format are not listed",)
    origin = origin_of(path, f"Megatron {backend}", facts, ranks=ranks, notes=notes)
    return Checkpoint(path, tensors, origin, files=files, problems=problems)


def _backend(path: Path) -> str:
    """`torch_dist`, `zarr`; what has no metadata.json of Megatron's is torch's own DCP."""
    if not (path / CONFIG).exists():
        return "torch_dist" if (path / COMMON).exists() else "torch_dcp or fsdp_dtensor"
    try:
        config = json.loads(read_regular(path / CONFIG, _LARGEST_CONFIG))
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{path / CONFIG} is not JSON: {error}") from None
    backend = config.get("sharded_backend") if isinstance(config, dict) else None
    return backend if isinstance(backend, str) and len(backend) < 40 else "torch_dist"


def _common(path: Path) -> tuple[MegatronFacts, list[Problem]]:
    if not (path / COMMON).exists():
        lost = (path / CONFIG).exists()
        missing = f"{path / COMMON} is missing; the iteration is in it"
        return facts_of({}), [Problem(missing, COMMON)] if lost else []
    try:
        facts = facts_of(TorchFile.open(path, COMMON).tree)
    except (BadFile, Unsupported) as error:
        return facts_of({}), [Problem(str(error), COMMON)]
    return facts, disagreement(path, facts, COMMON)


def _named(flats: Iterable[str]) -> dict[str, Key]:
    """Megatron's meaning of the flat keys."""
    every = list(flats)
    states = {flat: match for flat in every if (match := _STATE.fullmatch(flat)) is not None}
    masters = {match["name"] for match in states.values() if match["role"] in _MASTERS}
    found: dict[Key, str] = {}
    for flat in every:
        match = states.get(flat)
        if match is not None:
            role = "param" if match["role"] in _MASTERS else match["role"]
            key = Key(match["name"], role)
        elif _OPTIMIZER.match(flat) or flat.startswith(("rng_state", "rerun_state")):
            key = Key(flat, "state")
        else:
            key = Key(flat, "param16" if flat in masters else "param")
        found[key if key not in found else Key(flat, "state")] = flat
    return {flat: key for key, flat in found.items()}
