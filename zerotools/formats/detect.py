"""Which format a path holds, told by names alone: no file is opened.

This is the one place that chooses: between formats that lie in one directory, and between the
checkpoints of a run. What it chose it says in `Detected.notes`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from zerotools.core.errors import BadFile, BadRequest
from zerotools.formats.signatures import (
    DCP,
    DCP_METADATA,
    MANIFEST,
    MEGATRON_FILES,
    MEGATRON_ITERATION,
    MEGATRON_RANK,
    MEGATRON_TRACKER,
    RECORD,
    TORCH_FILE,
    UNFINISHED,
    WEIGHTS,
    formats_in,
    fsdp_models,
    is_deepspeed_file,
    names_in,
)
from zerotools.io.files.regular import check_regular, read_regular

# A run's checkpoints: zerotools and torchtitan, the HF Trainer, verl, accelerate.
_NUMBERED = re.compile(r"(?P<kind>step-|checkpoint-|global_step_|checkpoint_|step_|epoch_)(\d+)")
# Where tools keep a run's checkpoints, or the one model of several that users mean.
_FURTHER_IN = ("checkpoint", "checkpoints", "actor", "model", "sharded")


class UnfinishedCheckpoint(BadFile):
    """A checkpoint whose save was not finished."""


@dataclass(frozen=True, slots=True)
class Detected:
    """A checkpoint: its format, where it is (below what was asked for, perhaps), and what to tell
    the user about the choice."""

    format: str
    path: Path
    notes: tuple[str, ...] = ()


def detect(path: Path) -> Detected:
    """The format of `path`: a checkpoint, or a run's directory, of whose numbered checkpoints the
    newest finished one is taken.

    Raises:
        BadRequest: there is nothing at `path`, or several checkpoints to choose from.
        Unfinished: it is a checkpoint whose save was not finished.
        BadFile: it is not a checkpoint.
    """
    if not path.exists():
        raise BadRequest(f"{path} does not exist")
    if not path.is_dir():
        return _detect_file(path)
    names = names_in(path)
    found = _detect_here(path, names) or _megatron_run(path, names)
    if found is not None:
        return replace(found, notes=(*found.notes, *_also_below(found, names)))
    _refuse_unfinished(path, names)
    return _detect_below(path, names)


def _detect_file(path: Path) -> Detected:
    check_regular(path)
    if path.name.endswith(WEIGHTS):
        return Detected("safetensors", path)
    if path.name.endswith(f"{WEIGHTS}.index.json"):
        return Detected("safetensors", path.parent)
    if path.name.endswith(".bin.index.json"):
        return Detected("torchfile", path.parent)
    if path.name in MEGATRON_FILES:
        return _megatron_rank(path.parent)
    if path.name == DCP_METADATA or path.suffix == ".distcp":
        raise BadRequest(f"{path} is one file of a torch DCP checkpoint; name its directory")
    if is_deepspeed_file(path.name):
        raise BadRequest(f"{path} is one file of a DeepSpeed checkpoint; name its directory")
    if path.suffix in TORCH_FILE:
        return Detected("torchfile", path)
    raise BadFile(
        f"{path} is not a checkpoint: it is not a directory, and not a "
        f"{', '.join((WEIGHTS, *TORCH_FILE))} file"
    )


def _detect_here(path: Path, names: set[str]) -> Detected | None:
    """The checkpoint that `path` itself is, if it is one."""
    if UNFINISHED.fullmatch(path.name) and names:
        raise UnfinishedCheckpoint(
            f"{path} is a checkpoint whose save was not finished; take an older one"
        )
    if RECORD in names and MANIFEST not in names and DCP_METADATA not in names:
        raise UnfinishedCheckpoint(
            f"{path} has {RECORD} and no {MANIFEST}, which is written last: the save was not "
            "finished; take an older checkpoint"
        )
    found = list(formats_in(path, names))
    if not found:
        return None
    taken, *others = found
    if taken.format == "megatron":
        return _megatron_rank(path)
    beside = [f"took the {taken.title} in {path}, not the {o.title} next to it" for o in others]
    return Detected(taken.format, path, (*beside, *_other_models(path, names)))


def _megatron_rank(path: Path) -> Detected:
    """One iteration; of one rank's directory the iteration that it is a part of."""
    if not MEGATRON_RANK.fullmatch(path.resolve().name):
        return Detected("megatron", path)
    above = path.resolve().parent
    return Detected(
        "megatron", above, ((f"{path} is one rank's; {above} has the files of all ranks"),)
    )


def _megatron_run(path: Path, names: set[str]) -> Detected | None:
    """The iteration that the tracker of Megatron's run names, else its newest."""
    iterations = sorted(
        (name for name in names if MEGATRON_ITERATION.fullmatch(name) and (path / name).is_dir()),
        key=lambda name: (name != "release", len(name), name),
    )
    found = [name for name in iterations if holds_megatron(path / name)]
    if not found:
        return None
    word = ""
    if MEGATRON_TRACKER in names:
        tracked = read_regular(path / MEGATRON_TRACKER, 4096).decode("utf-8", "replace").strip()
        word = f"iter_{int(tracked):07d}" if re.fullmatch(r"\d{1,12}", tracked) else tracked[:40]
        if word not in found:
            raise BadFile(
                f"{path / MEGATRON_TRACKER} names {word!r}, which {path} does not hold: take "
                f"{' or '.join(found[-3:])}"
            )
    taken = word or found[-1]
    why = f"which {MEGATRON_TRACKER} names" if word else "the newest"
    note = (f"took {taken}, {why}, of {len(found)}",) if len(found) > 1 or not word else ()
    return Detected("megatron", path / taken, note)


def holds_megatron(path: Path) -> bool:
    """Whether the iteration at `path` holds anything of Megatron's."""
    return any(held.format == "megatron" for held in formats_in(path, names_in(path)))


def _other_models(path: Path, names: set[str]) -> Iterator[str]:
    first, *others = fsdp_models(names) or [""]
    if others:
        yield f"took {first}; {path} also holds {', '.join(others)}: name it to read it"


def _also_below(found: Detected, names: set[str]) -> Iterator[str]:
    """A run's final weights lie beside its checkpoints."""
    below = [name for name in names if _NUMBERED.fullmatch(name) and (found.path / name).is_dir()]
    finished = sorted(name for name in below if found.format in ("safetensors", "torchfile"))
    if finished and any(_finished(found.path / name) for name in finished):
        yield f"took the weights in {found.path} itself; name {finished[0]} for what it holds"


def _refuse_unfinished(path: Path, names: set[str]) -> None:
    inside = {name for model in (DCP, *fsdp_models(names)) for name in _names_of(path / model)}
    if any(name.endswith(".distcp") for name in names | inside):
        raise UnfinishedCheckpoint(
            f"{path} has .distcp files and no {DCP_METADATA}, which torch writes last: the save "
            "was not finished; take an older checkpoint"
        )


def _names_of(path: Path) -> set[str]:
    return names_in(path) if path.is_dir() else set()


def _detect_below(path: Path, names: set[str]) -> Detected:
    """One of the checkpoints in a run's or job's output directory."""
    numbered = _numbered(path, names)
    if numbered:
        return _newest(path, numbered)
    inside = [name for name in sorted(names) if _is_checkpoint(path / name)]
    known = [name for name in _FURTHER_IN if name in inside or _has_numbered(path / name)]
    if known:
        found = detect(path / known[0])
        others = [name for name in inside if name != known[0]]
        note = (f"took {known[0]}; {path} holds {', '.join(others)} too",) if others else ()
        return replace(found, notes=(*note, *found.notes))
    if inside:
        raise BadRequest(
            f"{path} is not a checkpoint itself, but holds some: name {' or '.join(inside)} in it"
        )
    if any(map(UNFINISHED.fullmatch, names)):
        raise UnfinishedCheckpoint(f"{path} holds only a checkpoint whose save was not finished")
    files = sorted(name for name in names if name.endswith(TORCH_FILE))
    if files:
        raise BadRequest(
            f"{path} is not a known layout of torch files: name {' or '.join(files[:9])}"
        )
    raise BadFile(
        f"{path} is not a checkpoint: it has no {DCP_METADATA} (torch DCP), *_model_states.pt "
        f"(DeepSpeed), *{WEIGHTS}, pytorch_model.bin or one .pt per rank, and no step-* or "
        "checkpoint-* directories that have them"
    )


def _numbered(path: Path, names: set[str]) -> list[tuple[int, str]]:
    """The run's checkpoints by number, oldest first.

    Raises:
        BadRequest: there are two kinds of them, whose numbers do not compare.
    """
    kinds: dict[str, list[tuple[int, str]]] = {}
    for name in names:
        if (match := _NUMBERED.fullmatch(name)) and (path / name).is_dir():
            kinds.setdefault(match["kind"], []).append((int(match[2]), name))
    if len(kinds) > 1:
        some = " or ".join(max(steps)[1] for steps in kinds.values())
        raise BadRequest(f"{path} holds checkpoints of {len(kinds)} kinds: name {some}")
    return sorted(next(iter(kinds.values()), []))


def _newest(path: Path, steps: list[tuple[int, str]]) -> Detected:
    unfinished: list[str] = []
    for _, name in reversed(steps):
        found = _finished(path / name)
        if found is not None:
            notes = (*_say(name, len(steps), unfinished), *found.notes)
            return Detected(found.format, found.path, notes)
        unfinished.append(name)
    raise UnfinishedCheckpoint(
        f"{path / unfinished[0]} was not finished, and {path} has no other checkpoint"
    )


def _finished(path: Path) -> Detected | None:
    """The checkpoint at `path`, if it is a finished one; a job's is when it has its manifest."""
    if not path.is_dir() or UNFINISHED.fullmatch(path.name):
        return None
    names = names_in(path)
    if RECORD in names and MANIFEST not in names:
        return None
    return _detect_here(path, names) or (_finished(path / "actor") if "actor" in names else None)


def _is_checkpoint(path: Path) -> bool:
    return _finished(path) is not None


def _has_numbered(path: Path) -> bool:
    return any(map(_NUMBERED.fullmatch, _names_of(path)))


def _say(taken: str, count: int, unfinished: list[str]) -> tuple[str, ...]:
    notes = [f"took {taken}, the newest of {count}"] if count > 1 and not unfinished else []
    if unfinished:
        notes.append(f"took {taken}: {', '.join(unfinished)} was not finished")
    return tuple(notes)
