"""Finds and removes the files of ended jobs: files first, then the record.

An intent, a small file in `cleaning/` of the state directory, is flushed before the first file is
removed, and is removed last: a daemon killed in between finishes at its next start. Checkpoints and
exports in the state directory are only removed on request. No link is followed.

Paths of users, and their links, may be on a file system that never responds. So child processes
call the functions in `CLEANING_LOOKS`: their arguments are pickled, their results are JSON.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from zerotools.runs.retention import is_within
from zerotoolsd.attempts import last_report
from zerotoolsd.attempts.run_directory import BEFORE, BEGUN, OWN
from zerotoolsd.interface.api_types import CleanRequest
from zerotoolsd.queue.fault_isolation import HELD_LOG
from zerotoolsd.queue.rows import AttemptRow, JobRow
from zerotoolsd.supervisor.durable_files import read_json, sync_directory, write_json

CLEANING = "cleaning"
_ATTEMPT = re.compile(r"attempt-[0-9]+")
_PATH = re.compile(r"""(?<![\w./-])/[^\s"'`=:,;|&<>(){}\[\]]+""")
"""An absolute path in a longer text, such as `--from=PATH`."""
_KEPT_BY_DAEMON = re.compile(rf"{BEGUN}-[0-9]+\.json")
OURS = re.compile(
    r"(attempt|spec|run|exit|ended|request|finder|heartbeats)\.json|progress\.jsonl|ledger|family"
    r"|lock|stop|notify\.sock|importable|\..*\.(new|room)"
    r"|(rank-[0-9]+|supervisor|closing|thinning|uploading|fetching|exporting)\.log"
    r"|(tokens\.u32|eval\.u32|packs\.u64)(\.index)?"
)
"""Files that daemon, supervisor and trainer write into the directory of an attempt."""


@dataclass(frozen=True, kw_only=True)
class RemovableFiles:
    """The files of one job in the state directory. `size_bytes` includes `outputs_bytes`.

    `places` are the directories of the job, `output_places` the outputs, each by its name and by
    its path with links resolved: jobs may name them by either.
    """

    own: Path
    places: tuple[str, ...]
    output_places: tuple[str, ...]
    logs: tuple[Path, ...]
    outputs: tuple[Path, ...]
    size_bytes: int
    outputs_bytes: int


class EndedJob(NamedTuple):
    """An ended job for the selection: number, state, and time of its end in seconds since the
    epoch."""

    id: int
    state: str
    ended: float | None


class NotRemovable(Exception):
    """The job cannot be removed; the message gives the reason."""


def selected(jobs: Sequence[EndedJob], wanted: CleanRequest, now: float) -> list[EndedJob]:
    """Return the selected jobs, the oldest first. The `keep` jobs that ended last are not
    selected."""
    over = [job for job in jobs if job.state in wanted.states]
    over.sort(key=lambda job: (job.ended or 0.0, job.id))
    meant = over[: -wanted.keep] if wanted.keep else over
    if wanted.jobs is not None:
        named = frozenset(wanted.jobs)
        meant = [job for job in meant if job.id in named]
    if wanted.older_than_seconds is not None:
        meant = [job for job in meant if now - (job.ended or now) > wanted.older_than_seconds]
    return meant


def files_of(jobs_dir: Path, job: JobRow, attempts: Sequence[AttemptRow]) -> RemovableFiles:
    """Return the files in the directory of a job.

    Raises OSError, and NotRemovable if it is not a job directory of this daemon.
    """
    own = jobs_dir / str(job.id)
    if own.is_symlink():
        raise NotRemovable(
            f"{own} is a link to files that may be in use elsewhere; remove it yourself"
        )
    logs, outputs, reported = [], [], _reported(attempts)
    for entry in _entries(own):
        mine = entry.name in (BEFORE, HELD_LOG, OWN) or bool(_ATTEMPT.fullmatch(entry.name))
        mine |= bool(_KEPT_BY_DAEMON.fullmatch(entry.name))
        if mine and not _holds_outputs(entry, reported):
            logs.append(entry)
        elif not _is_empty(entry):
            outputs.append(entry)
        else:
            logs.append(entry)
    outputs += _among_others(jobs_dir, own, Path(job.output_dir))
    written = sum(map(_size, outputs))
    return RemovableFiles(
        own=own,
        places=names_of(str(own), job.output_dir),
        output_places=names_of(*map(str, outputs)),
        logs=tuple(logs),
        outputs=tuple(outputs),
        size_bytes=written + sum(map(_size, logs)),
        outputs_bytes=written,
    )


def _among_others(jobs_dir: Path, own: Path, output: Path) -> list[Path]:
    """Return the output of a job that continued in the directory of another job below `jobs_dir`.

    `output` and the state directory may be reached by links, so real paths are compared.
    """
    if output.is_relative_to(jobs_dir.parent):
        place = output
    else:
        real_state, real = (Path(_real(str(path))) for path in (jobs_dir.parent, output))
        if not real.is_relative_to(real_state):
            return []
        place = jobs_dir.parent / real.relative_to(real_state)
    if place.is_relative_to(own):
        return []
    parts = place.relative_to(jobs_dir).parts if place.is_relative_to(jobs_dir) else ()
    if len(parts) < 2 or ".." in parts or not parts[0].isdecimal() or _ATTEMPT.fullmatch(parts[1]):
        raise NotRemovable(f"it wrote to {output}, among the daemon's files; remove that yourself")
    return [place] if os.path.lexists(place) else []


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except FileNotFoundError:
        return []


def _reported(attempts: Sequence[AttemptRow]) -> list[Path]:
    """Return the checkpoints that the job's program reported, with links resolved."""
    paths = (last_report.last_report(attempt).checkpoint_path for attempt in attempts)
    return [Path(_real(path)) for path in paths if path]


def _holds_outputs(entry: Path, reported: Sequence[Path]) -> bool:
    """Return whether a program has kept files in the directory of an attempt."""
    place = _real(str(entry))
    if entry.is_symlink() or any(path.is_relative_to(place) for path in reported):
        return True
    if not entry.is_dir():
        return False
    names = (each.name for each in entry.iterdir())
    if entry.name == OWN:
        return any(name != BEFORE for name in names)
    return any(not OURS.fullmatch(name) for name in names)


def _is_empty(entry: Path) -> bool:
    """Return whether `path` is a directory that contains nothing, or only the lock of a run."""
    if entry.is_symlink() or not entry.is_dir():
        return False
    return all(each.name == ".lock" for each in entry.iterdir())


def _size(path: Path) -> int:
    if path.is_symlink() or not path.is_dir():
        return path.lstat().st_size
    total = 0
    for directory, _, names in os.walk(path):
        for name in names:
            try:
                total += os.lstat(os.path.join(directory, name)).st_size  # noqa: PTH118  # speed
            except FileNotFoundError:
                continue
    return total


@dataclass(frozen=True, kw_only=True)
class Mention:
    """A path in a job file, or a text that contains one, under `key`. `real` has links resolved."""

    key: str
    text: str
    real: str

    def is_in(self, place: str) -> bool:
        """Return whether the mention is the path `place`, or is inside of it."""
        return any(is_within(text, place) for text in (self.text, self.real))


def mentions(spec_text: str, output_dir: str) -> list[Mention]:
    """Return every path in a job file. It may wait for a file system that hangs."""
    try:
        named = [*texts_of(json.loads(spec_text)), ("output_dir", output_dir)]
    except (ValueError, RecursionError):  # in any case, the paths in it are protected
        named = [("its job file", spec_text), ("output_dir", output_dir)]
    found, known, mounts = list[Mention](), dict[str, str](), Mounts()
    for key, text in named:
        names = [real := _real(text), mounts.first_name(real)]
        if key != "output_dir":
            within = _PATH.sub(lambda path: _followed(path[0], known), text)
            names.append(within)
            names.append(_PATH.sub(lambda path: mounts.first_name(path[0]), within))
        others = (name for name in dict.fromkeys(names) if name not in (text, real))
        found += [Mention(key=key, text=text, real=name) for name in (real, *others)]
    return found


def texts_of(tree: object, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield every text of a job file that contains a path, with its dotted key."""
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            yield from texts_of(value, f"{key}.{name}" if key else str(name))
    elif isinstance(tree, list):
        for value in tree:
            yield from texts_of(value, key)
    elif isinstance(tree, str) and "/" in tree:
        yield key, tree


def _real(text: str) -> str:
    if not text.startswith("/"):
        return text
    try:
        return os.path.realpath(text)
    except ValueError:  # it holds what no path can
        return text


def _followed(path: str, known: dict[str, str]) -> str:
    """Return `path` with links resolved.

    `known` caches resolved directories: a command may name thousands of files of one directory.
    """
    parent, _, name = path.rstrip("/").rpartition("/")
    if name in ("", ".", ".."):
        return _real(path)
    if parent not in known:
        known[parent] = _real(f"{parent}/").rstrip("/")
    followed = f"{known[parent]}/{name}"
    return _real(followed) if os.path.islink(followed) else followed  # noqa: PTH114  # speed


def names_of(*paths: str) -> tuple[str, ...]:
    """Return the names of each path: as given, with links resolved, and below its first mount."""
    real, mounts = list(map(_real, paths)), Mounts()
    return tuple(dict.fromkeys((*paths, *real, *map(mounts.first_name, real))))


def note_intent(state_dir: Path, job_id: int, *, outputs: bool) -> None:
    """Record durably that the job is being removed. Raises OSError."""
    directory = state_dir / CLEANING
    directory.mkdir(exist_ok=True, mode=0o700)
    sync_directory(state_dir)
    write_json(directory / str(job_id), {"outputs": outputs})


def intents(state_dir: Path) -> dict[int, bool]:
    """Return the jobs with an unfinished removal, each with whether its outputs are removed,
    too."""
    found = {}
    for path in _entries(state_dir / CLEANING):
        if not (path.name.isascii() and path.name.isdecimal()):
            continue
        try:
            found[int(path.name)] = (read_json(path) or {}).get("outputs") is True
        except ValueError:
            found[int(path.name)] = False
    return found


def is_noted(state_dir: Path, job_id: int) -> bool:
    """Return whether the removal of the job was begun and is not finished."""
    return (state_dir / CLEANING / str(job_id)).exists()


def forget_intent(state_dir: Path, job_id: int) -> None:
    """Remove the intent of a removed job. Raises OSError."""
    (state_dir / CLEANING / str(job_id)).unlink(missing_ok=True)


def remove(files: RemovableFiles, *, outputs: bool) -> None:
    """Remove the files, and the job's directory if that is empty then. Raises OSError.

    In a directory of root, another user removes only the contents of entries.
    """
    for path in _going(files, outputs=outputs):
        _remove(path)
    parents = {files.own, *(path.parent for path in files.outputs)}
    for directory in parents - {files.own.parent}:
        if not _may_change(directory.parent):
            continue
        if directory.is_dir() and not directory.is_symlink() and not any(directory.iterdir()):
            directory.rmdir()


def remove_empty(jobs_dir: Path, files: RemovableFiles, *, outputs: bool) -> None:
    """Remove what `remove` left if the job's user ran it. Raises OSError.

    These are entries of the daemon's directories; a directory must be empty.
    """
    for path in _going(files, outputs=outputs):
        if path.parent != files.own:
            continue  # in another job's directory, which is not this user's to change
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
    with suppress(FileNotFoundError):
        if files.own.parent == jobs_dir and not any(files.own.iterdir()):
            files.own.rmdir()


def _going(files: RemovableFiles, *, outputs: bool) -> tuple[Path, ...]:
    return (*files.logs, *(files.outputs if outputs else ()))


def _may_change(directory: Path) -> bool:
    return os.geteuid() == 0 or os.access(directory, os.W_OK)


def _remove(path: Path) -> None:
    if not _may_change(path.parent):
        if path.is_dir() and not path.is_symlink():
            for each in path.iterdir():
                _remove(each)
    elif path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


MOUNTS = Path("/proc/self/mountinfo")
_ESCAPED = re.compile(rb"\\([0-7]{3})")


@dataclass(frozen=True)
class Mount:
    """A mount: the directory `root` of the file system on `device` is mounted at `place`."""

    device: bytes
    root: str
    place: str


class Mounts:
    """The current mounts of this process. They resolve bind mounts."""

    def __init__(self, text: bytes | None = None) -> None:
        """Read the mounts. `text` replaces the contents of `MOUNTS`."""
        try:
            lines = (MOUNTS.read_bytes() if text is None else text).splitlines()
        except OSError:
            lines = []
        self._all = [_mount(line.split()) for line in lines if len(line.split()) > 4]

    def first_name(self, path: str) -> str:
        """Return `path`, which has no links, as a path below the first mount of its file system."""
        holds = [each for each in self._all if _is_in(path, each.place)]
        if not holds:
            return path
        # Of several mounts at one path, only the last is visible.
        own = max(enumerate(holds), key=lambda each: (len(each[1].place), each[0]))[1]
        inside = _joined(own.root, path[len(own.place.rstrip("/")) :])
        for each in self._all:
            if each.device == own.device and _is_in(inside, each.root):
                return _joined(each.place, inside[len(each.root.rstrip("/")) :])
        return path


def _mount(fields: list[bytes]) -> Mount:
    root, place = (_ESCAPED.sub(lambda m: bytes([int(m[1], 8)]), each) for each in fields[3:5])
    names = (each.decode("utf-8", "surrogateescape") for each in (root, place))
    return Mount(fields[2], *names)


def _is_in(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place.rstrip('/')}/")


def _joined(place: str, below: str) -> str:
    return f"{place.rstrip('/')}{below}" or "/"


def removable_files(jobs_dir: str, job: JobRow, attempts: Sequence[AttemptRow]) -> dict[str, Any]:
    """Return the result of `files_of` as JSON, for `files_in`. Raises OSError."""
    try:
        files = files_of(Path(jobs_dir), job, attempts)
    except NotRemovable as why:
        return {"stays": str(why)}
    return {
        **asdict(files),
        "own": str(files.own),
        "logs": list(map(str, files.logs)),
        "outputs": list(map(str, files.outputs)),
    }


def files_in(answer: Mapping[str, Any]) -> RemovableFiles:
    """Return the result of `removable_files` as an object. Raises NotRemovable."""
    if "stays" in answer:
        raise NotRemovable(answer["stays"])
    return RemovableFiles(
        own=Path(answer["own"]),
        places=tuple(answer["places"]),
        output_places=tuple(answer["output_places"]),
        logs=tuple(map(Path, answer["logs"])),
        outputs=tuple(map(Path, answer["outputs"])),
        size_bytes=answer["size_bytes"],
        outputs_bytes=answer["outputs_bytes"],
    )


def mentioned_paths(spec_text: str, output_dir: str) -> list[dict[str, str]]:
    """Return the result of `mentions` as JSON, for `mentions_in`."""
    return [asdict(mention) for mention in mentions(spec_text, output_dir)]


def mentions_in(answer: Sequence[Mapping[str, str]]) -> list[Mention]:
    """Return the result of `mentioned_paths` as objects."""
    return [Mention(**each) for each in answer]


def remove_files(files: RemovableFiles, outputs: bool) -> None:
    """Call `remove` in a child process. Raises OSError."""
    remove(files, outputs=outputs)


CLEANING_LOOKS = (removable_files, mentioned_paths, remove_files)
