"""Which format a path holds, told by names alone: no file is opened."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from zerotools.core.errors import BadFile, BadRequest, Unsupported

_DCP, _DCP_METADATA = "dcp", ".metadata"
_RECORD, _MANIFEST = "job.json", "MANIFEST.json"
_RANK_METADATA = re.compile(r"__\d+\.metadata")
_STEP = re.compile(r"step-(\d+)")
_UNFINISHED = re.compile(r"\.tmp-.*|.*\.partial")
_DEEPSPEED = re.compile(r"(zero_pp_rank_\d+_)?mp_rank_\d+_model_states\.pt(-\d+\.\d+)?")
_WEIGHTS = ".safetensors"


@dataclass(frozen=True, slots=True)
class Detected:
    """A checkpoint: its format, where it is (below what was asked for, perhaps), and what to tell
    the user about the choice."""

    format: str
    path: Path
    notes: tuple[str, ...] = ()


def detect(path: Path) -> Detected:
    """The format of `path`: a checkpoint, or a directory that holds `step-*` checkpoints, of which
    the newest finished one is taken.

    Raises:
        BadRequest: there is nothing at `path`, or several checkpoints to choose from.
        BadFile: it is no checkpoint, or one whose save was not finished.
        Unsupported: it is in a format that is not read.
    """
    if not path.exists():
        raise BadRequest(f"{path} does not exist")
    if not path.is_dir():
        return _detect_file(path)
    names = _names(path)
    found = _detect_here(path, names)
    if found is not None:
        return found
    _refuse_known(path, names)
    return _detect_below(path, names)


def _names(path: Path) -> set[str]:
    try:
        return {entry.name for entry in path.iterdir()}
    except OSError as error:
        raise BadRequest(f"{path} cannot be listed: {error.strerror}") from None


def _detect_file(path: Path) -> Detected:
    if path.name.endswith(_WEIGHTS):
        return Detected("safetensors", path)
    if path.name.endswith(f"{_WEIGHTS}.index.json"):
        return Detected("safetensors", path.parent)
    if path.name == _DCP_METADATA or path.suffix == ".distcp":
        raise BadRequest(f"{path} is one file of a torch DCP checkpoint; name its directory")
    if path.suffix in (".pt", ".pth", ".bin"):
        raise Unsupported(f"{path} is a torch file, which is not supported yet")
    raise BadFile(f"{path} is no checkpoint: neither a directory nor a {_WEIGHTS} file")


def _detect_here(path: Path, names: set[str]) -> Detected | None:
    """The checkpoint that `path` itself is, if it is one."""
    if _UNFINISHED.fullmatch(path.name) and names:
        raise BadFile(f"{path} is a checkpoint whose save was not finished; take an older one")
    if _DCP_METADATA in names or any(map(_RANK_METADATA.fullmatch, names)):
        return Detected("dcp", path)
    if _RECORD in names and _MANIFEST not in names:
        raise BadFile(
            f"{path} has {_RECORD} and no {_MANIFEST}, which is written last: the save was not "
            "finished; take an older checkpoint"
        )
    if _DCP in names and (_RECORD in names or (path / _DCP / _DCP_METADATA).exists()):
        return Detected("dcp", path)
    if _is_deepspeed(path, names):
        return Detected("deepspeed", path)
    if any(name.endswith((_WEIGHTS, f"{_WEIGHTS}.index.json")) for name in names):
        return Detected("safetensors", path)
    return None


def _is_deepspeed(path: Path, names: set[str]) -> bool:
    """A tag directory, or a save directory with one in it; its reader finds which tag is meant.

    A save directory often holds exported weights too; the masters in its shards come first.
    """
    if any(map(_DEEPSPEED.fullmatch, names)):
        return True
    inside = (entry for entry in path.iterdir() if entry.is_dir())
    return any(_DEEPSPEED.fullmatch(name) for entry in inside for name in _names_or_none(entry))


def _names_or_none(path: Path) -> set[str]:
    """The names in a directory that need not be readable."""
    try:
        return _names(path)
    except BadRequest:
        return set()


def _refuse_known(path: Path, names: set[str]) -> None:
    inside = _names(path / _DCP) if (path / _DCP).is_dir() else set()
    if any(name.endswith(".distcp") for name in names | inside):
        raise BadFile(
            f"{path} has .distcp files and no {_DCP_METADATA}, which torch writes last: the save "
            "was not finished; take an older checkpoint"
        )
    if any(re.fullmatch(r"pytorch_model.*\.bin(\.index\.json)?", name) for name in names):
        raise Unsupported(f"{path} holds pytorch_model .bin files, which are not supported yet")


def _detect_below(path: Path, names: set[str]) -> Detected:
    """One of the checkpoints in a run's or job's output directory."""
    steps = sorted((int(match[1]), name) for name in names if (match := _STEP.fullmatch(name)))
    unfinished: list[str] = []
    for _, name in reversed(steps):
        found = _finished(path / name)
        if found is not None:
            return Detected(found.format, found.path, _say(name, len(steps), unfinished))
        unfinished.append(name)
    if unfinished:
        raise BadFile(f"{path / unfinished[0]} was not finished, and {path} has no other that was")
    inside = [name for name in sorted(names) if _finished(path / name) is not None]
    if inside:
        raise BadRequest(
            f"{path} is no checkpoint itself, but holds some: name {' or '.join(inside)} in it"
        )
    if any(map(_UNFINISHED.fullmatch, names)):
        raise BadFile(f"{path} holds only a checkpoint whose save was not finished")
    raise BadFile(
        f"{path} is no checkpoint: it has neither {_DCP_METADATA} (torch DCP), nor "
        "*_model_states.pt (DeepSpeed), nor "
        f"*{_WEIGHTS}, nor step-* directories that do"
    )


def _finished(path: Path) -> Detected | None:
    """The checkpoint at `path`, if it is a finished one; a job's is when it has its manifest."""
    if not path.is_dir() or _UNFINISHED.fullmatch(path.name):
        return None
    names = _names(path)
    if _RECORD in names and _MANIFEST not in names:
        return None
    return _detect_here(path, names)


def _say(taken: str, count: int, unfinished: list[str]) -> tuple[str, ...]:
    notes = [f"took {taken}, the newest of {count}"] if count > 1 and not unfinished else []
    if unfinished:
        notes.append(f"took {taken}: {', '.join(unfinished)} was not finished")
    return tuple(notes)
