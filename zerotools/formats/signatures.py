"""What each format looks like from outside: the names of files in a directory."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from zerotools.core.errors import BadRequest

DCP, DCP_METADATA = "dcp", ".metadata"
RECORD, MANIFEST = "job.json", "MANIFEST.json"
WEIGHTS = ".safetensors"
TORCH_FILE = (".pt", ".pth", ".bin", ".ckpt")
UNFINISHED = re.compile(r"\.tmp-.*|.*\.partial")
_RANK_METADATA = re.compile(r"__\d+\.metadata")
_DEEPSPEED_FILE = re.compile(
    r"((bf16_)?zero_pp_rank_\d+_)?mp_rank_\d+_?(model|optim)_states\.pt(-\d+\.\d+)?"
)
_FSDP_MODEL = re.compile(r"pytorch_model_fsdp_\d+")
_TORCH_MODEL = re.compile(
    r"(pytorch_model|adapter_model|pytorch_model_fsdp(_\d+)?)\.bin"
    r"|pytorch_model-\d+-of-\d+\.bin|pytorch_model.*\.bin\.index\.json"
    r"|checkpoint\.pt"
    r"|(?!optim|extra_state|random|rng|scheduler).*rank_?\d+\.(pt|pth|bin)"
)
MEGATRON_FILES = ("model_optim_rng.pt", "distrib_optim.pt")
MEGATRON_RANK = re.compile(r"mp_rank_\d{2,4}(_\d{3,5}){0,2}")
MEGATRON_TRACKER = "latest_checkpointed_iteration.txt"
MEGATRON_ITERATION = re.compile(r"iter_\d{7,}|release")
_MEGATRON_COMMON = {"common.pt", "metadata.json"}


class DirectoryFormat(NamedTuple):
    """A format that lies in a directory, and how to call what lies there."""

    format: str
    title: str


def formats_in(path: Path, names: set[str]) -> Iterator[DirectoryFormat]:
    """The formats that lie in a directory, the one to take first: shards with optimizer state come
    before weights that were exported from them."""
    if is_megatron(path, names):
        yield DirectoryFormat("megatron", "Megatron")
    elif _is_dcp(path, names):
        yield DirectoryFormat("dcp", "torch DCP")
    if _is_deepspeed(path, names):
        yield DirectoryFormat("deepspeed", "DeepSpeed ZeRO")
    if any(name.endswith((WEIGHTS, f"{WEIGHTS}.index.json")) for name in names):
        yield DirectoryFormat("safetensors", "safetensors")
    if any(map(_TORCH_MODEL.fullmatch, names)):
        yield DirectoryFormat("torchfile", "torch files")


def names_in(path: Path) -> set[str]:
    """The names in a directory.

    Raises:
        BadRequest: it cannot be listed.
    """
    try:
        return {entry.name for entry in path.iterdir()}
    except OSError as error:
        raise BadRequest(f"{path} cannot be listed: {error.strerror}") from None


def is_deepspeed_file(name: str) -> bool:
    return re.search(r"(mp_rank|expert|layer)_\d+.*_(model|optim)_states\.pt", name) is not None


def is_megatron(path: Path, names: set[str]) -> bool:
    """Whether `path` is one iteration of Megatron's, or has one rank's files: torch_dist (a DCP
    beside common.pt), other forms of it, or legacy rank files."""
    if names >= _MEGATRON_COMMON or names >= {DCP_METADATA, "common.pt"}:
        return True
    if names & {*MEGATRON_FILES}:
        return True
    if any(_has_rank_files(path / name) for name in filter(MEGATRON_RANK.fullmatch, names)):
        return True
    in_a_run = MEGATRON_ITERATION.fullmatch(path.name) and (path.parent / MEGATRON_TRACKER).exists()
    return bool(in_a_run) and DCP_METADATA in names


def _has_rank_files(path: Path) -> bool:
    return any((path / name).exists() for name in MEGATRON_FILES)


def fsdp_models(names: set[str]) -> list[str]:
    """accelerate's directories of one model each, by number."""
    found = filter(_FSDP_MODEL.fullmatch, names)
    return sorted(found, key=lambda name: int(name.rpartition("_")[2]))


def _is_dcp(path: Path, names: set[str]) -> bool:
    if DCP_METADATA in names or any(map(_RANK_METADATA.fullmatch, names)):
        return True
    if DCP in names and (RECORD in names or (path / DCP / DCP_METADATA).exists()):
        return True
    return any((path / name / DCP_METADATA).exists() for name in fsdp_models(names)[:1])


def _is_deepspeed(path: Path, names: set[str]) -> bool:
    """A tag directory, or a save directory with one in it; its reader finds which tag is meant."""
    if any(map(_DEEPSPEED_FILE.fullmatch, names)):
        return True
    inside = (entry for entry in path.iterdir() if entry.is_dir())
    return any(_DEEPSPEED_FILE.fullmatch(name) for entry in inside for name in _readable(entry))


def _readable(path: Path) -> set[str]:
    """The names in a directory that need not be readable."""
    try:
        return names_in(path)
    except BadRequest:
        return set()
