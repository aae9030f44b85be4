"""Finds possible checkpoints in a directory, and takes their fingerprints.

A file that is numbered by its step is one checkpoint, whatever other files are in the directory.
Several files are one checkpoint if their names show it: an index, `model-00001-of-00002`, one file
per rank, or a name that loaders of a directory expect, such as `model.safetensors`. In all other
cases each file is one checkpoint.

Some entries lack a part of the run's state: an optimizer in a separate file, the best model, an
export. Next to complete checkpoints, such entries are marked `incomplete`.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Collection, Iterator, Set
from dataclasses import dataclass, replace
from pathlib import Path

from zerotools.core.errors import BadRequest
from zerotools.formats import FORMATS
from zerotools.formats.detect import UNFINISHED, formats_in
from zerotools.io.huggingface.model_index import set_of
from zerotoolsd.supervisor.transient_os_errors import is_transient

MAX_FILES = 100_000
_TEMPORARY = re.compile(r"\..*|tmp[-_.].*|.*[-_.](tmp|temp|incomplete|partial)")
_SUFFIXES = tuple(suffix for form in FORMATS.values() for suffix in form.suffixes)
_NUMBER = re.compile(r"\d+")
_STEP = re.compile(
    r"(?:.*[^a-z])?(?:step|iter|iteration|epoch|checkpoint|ckpt)s?[-_.= ]*\d+", re.IGNORECASE
)
_NEWEST = re.compile(
    r"(?!.*(best|ema|optim))(?:.*[^a-z])?(?:last|latest|newest|current|resume|checkpoint|ckpt)"
    r"(?:[^a-z].*)?",
    re.IGNORECASE,
)
_SEVERAL = re.compile(
    r"(model|pytorch_model|adapter_model|pytorch_model_fsdp(_\d+)?)\.(safetensors|bin)"
    r"|.*\.(safetensors|bin)\.index\.json|shard-\d+-model-\d+-of-\d+\.safetensors"
    r"|(?!optim|extra_state|random|rng|scheduler).*rank_?\d+\.(pt|pth|bin)"
)
"""File names that make their directory one checkpoint of several files."""
_INCOMPLETE = re.compile(
    r"(?:.*[^a-z])?(?:best|ema|optim|optimizer|opt|sched|scheduler|scaler|rng|random_states?"
    r"|replay|buffer)(?:[^a-z].*)?",
    re.IGNORECASE,
)
"""File names of a part of a state, or of an older state."""
_LEVELS = 4
"""Depth of the search for checkpoints in nested directories, as for Lightning."""
_CONFIGS = frozenset({"config.json", "adapter_config.json"})


@dataclass(frozen=True)
class Candidate:
    """A possible checkpoint: a file or directory, as it is now.

    Attributes:
        changed: the time at which its newest file was written, in nanoseconds since the epoch.
        number: the last number in its name, if this number may be its step; None otherwise.
        others: names of files in the directory that are separate checkpoints.
        incomplete: whether it lacks a part of the run's state, so that it is used only if there are
            no other candidates.
    """

    path: Path
    fingerprint: str
    changed: int
    others: frozenset[str] = frozenset()
    incomplete: bool = False

    @property
    def number(self) -> int | None:
        name = self.path.name
        if not is_numbered(name) and _NEWEST.fullmatch(_stem(name)):
            return None  # `last-v1` has no step 1
        found = _NUMBER.findall(self.path.stem if self.path.is_file() else name)
        return int(found[-1]) if found and len(found[-1]) < 19 else None


def candidates_in(directory: Path) -> list[Candidate]:
    """Return the possible checkpoints in `directory`. If no checkpoint is in it, and the directory
    itself may be a checkpoint, return the directory.

    The list is empty if the directory does not exist.

    Raises BadRequest if the directory cannot be listed, and OSError for a transient error of the
    disk or the file server.
    """
    try:
        if not directory.is_dir():
            return []
        every = set(os.listdir(directory))  # noqa: PTH208  # names
    except OSError as error:
        if is_transient(error):
            raise
        raise BadRequest(f"{directory} cannot be listed: {error.strerror}") from None
    names = _usable(directory, every)
    below = [directory / name for name in names if (directory / name).is_dir()]
    paths = [path for each in below for path in _checkpoints_at(each)]
    files = [name for name in names if name.endswith(_SUFFIXES) and directory / name not in below]
    numbered = frozenset(_separate(files))
    others: frozenset[str] = frozenset()
    if not paths and _is_one(directory, every - numbered, numbered):
        paths, others = [directory], numbered
    elif not (paths or numbered):
        paths = [directory / name for name in files]
    paths += [directory / name for name in sorted(numbered)]
    steps = any(is_numbered(path.name) for path in paths)
    found = (candidate_of(path, others if path == directory else frozenset()) for path in paths)
    return [
        replace(each, incomplete=_is_incomplete(each.path, steps=steps and each.path in below))
        for each in found
        if each is not None
    ]


def _is_incomplete(path: Path, *, steps: bool) -> bool:
    """Return whether `path` does not contain the whole state of a run. `steps` is True if
    directories of steps are next to it.
    """
    name = path.name
    if steps and not (is_numbered(name) or _NEWEST.fullmatch(name)):
        return True
    return path.is_file() and bool(_INCOMPLETE.fullmatch(_stem(name)))


def without_incomplete(found: Collection[Candidate]) -> list[Candidate]:
    """Return `found` without the candidates that are marked `incomplete`. If all candidates are
    marked, return all.
    """
    return [each for each in found if not each.incomplete] or list(found)


def is_numbered(name: str) -> bool:
    """Return whether a file or directory is numbered by its step, epoch or iteration."""
    return bool(_STEP.fullmatch(_stem(name)))


def _stem(name: str) -> str:
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return name


def _separate(files: Collection[str]) -> list[str]:
    """Return the files that are one checkpoint each: numbered files, and `last.ckpt` and the like.

    A file counts if its name has its step, or if the program rewrites the file at every save, such
    as `last.ckpt`. `best.pt` does not count, because it may be old.
    """
    numbered = [name for name in files if is_numbered(name)]
    newest = [n for n in files if n not in numbered and _NEWEST.fullmatch(_stem(n))]
    if not numbered and len(newest) + sum("best" in name for name in files) != len(files):
        return []
    return numbered + newest


def _usable(directory: Path, every: Collection[str]) -> list[str]:
    return sorted(n for n in every if not _is_temporary(n) and not _is_alias(directory, n))


def _checkpoints_at(path: Path, levels: int = _LEVELS) -> list[Path]:
    """Return `path` if it is a checkpoint; otherwise return the checkpoints in it that are numbered
    by their steps.

    The search goes down at most `levels` directories. In accelerate and verl, a checkpoint is one
    level down, in Lightning three.
    """
    every = _names(path)
    if _holds(path, every):
        names = every if is_numbered(path.name) else _usable(path, every)
        steps = _separate([n for n in names if n.endswith(_SUFFIXES)])
        if is_numbered(path.name) or not steps:
            return [path]
        return [path / name for name in steps if (path / name).is_file()]
    below = [path / name for name in every if _holds(path / name, _names(path / name))]
    if is_numbered(path.name):
        return [path] if below else []
    steps = [each.name for each in below if is_numbered(each.name)]
    if steps:
        return [path / name for name in _usable(path, steps)]
    found = [each for name in _usable(path, every) for each in _below(path / name, levels)]
    if below and not any(each.is_file() or is_numbered(each.name) for each in found):
        return [path]
    return found


def _below(path: Path, levels: int) -> list[Path]:
    return _checkpoints_at(path, levels - 1) if levels > 1 and path.is_dir() else []


def _is_one(directory: Path, names: set[str], numbered: Set[str]) -> bool:
    """Return whether the files `names` form a single checkpoint. `numbered` are the numbered files
    next to them.
    """
    held = [form for form in formats_in(directory, names, FORMATS) if not FORMATS[form].is_nested]
    if any(not FORMATS[form].suffixes for form in held):
        return True
    if any(_SEVERAL.fullmatch(name) or set_of(name) for name in names):
        return bool(held)
    single = sum(name.endswith(_SUFFIXES) for name in names) == 1 and not numbered
    return bool(held) and single and not names.isdisjoint(_CONFIGS)


def _is_temporary(name: str) -> bool:
    return bool(_TEMPORARY.fullmatch(name) or UNFINISHED.fullmatch(name))


def _is_alias(directory: Path, name: str) -> bool:
    """Return whether `name` is a link, such as `latest`, to another entry of `directory`."""
    path = directory / name
    return path.is_symlink() and path.resolve().parent == directory.resolve()


def _names(path: Path) -> set[str]:
    try:
        return {entry.name for entry in os.scandir(path)}
    except OSError as error:
        _raise_if_it_passes(error)
        return set()


def _raise_if_it_passes(error: OSError) -> None:
    if is_transient(error):
        raise error


def _holds(path: Path, names: set[str]) -> bool:
    if any(name.endswith(_SUFFIXES) for name in names):
        return True
    return bool(names and formats_in(path, names, FORMATS))


def candidate_of(path: Path, others: frozenset[str] = frozenset()) -> Candidate | None:
    """Return the candidate at `path`, without the files `others`; None if `path` is gone or
    contains no file.

    Raises OSError, as `candidates_in`.
    """
    digest, changed, count = hashlib.sha256(), 0, 0
    try:
        for name, found in _files(path, others):
            digest.update(os.fsencode(name))
            digest.update(f"\0{found.st_size}\0{found.st_mtime_ns}\0".encode())
            changed, count = max(changed, found.st_mtime_ns), count + 1
            if count > MAX_FILES:
                break
    except OSError as error:
        _raise_if_it_passes(error)
        return None  # it is being written, or deleted
    return Candidate(path, digest.hexdigest(), changed, others) if count else None


def _files(path: Path, others: Set[str]) -> Iterator[tuple[str, os.stat_result]]:
    if not path.is_dir():
        yield path.name, path.stat()
        return
    for root, directories, names in os.walk(path, onerror=_raise_if_it_passes):
        directories.sort()
        for name in sorted(names):
            file = Path(root) / name
            if (relative := str(file.relative_to(path))) not in others:
                yield relative, file.lstat()
