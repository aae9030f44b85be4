"""Finds and removes the files of ended jobs: files first, then the record.

Before the first file is removed, a small file (an intent) is written to `cleaning/` in the state
directory and flushed to the disk. The intent is removed last. So if the daemon is killed in
between, the next daemon finishes the removal. Checkpoints and exports in the state directory are
only removed on request. No link is followed.

Paths of users may be on a file system that never responds. So the functions in `CLEANING_LOOKS` are
called in child processes. The arguments of these functions are pickled, and their results are JSON.
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

from zerotools.runs.deletable_checkpoints import is_within
from zerotoolsd.attempts import last_report
from zerotoolsd.attempts.prepare_run_directory import BEFORE, BEGUN
from zerotoolsd.interface.api_types import CleanRequest
from zerotoolsd.queue.fault_isolation import HELD_LOG
from zerotoolsd.queue.rows import AttemptRow, JobRow
from zerotoolsd.supervisor.attempt_plan import OWN, SLURM_NAME
from zerotoolsd.supervisor.durable_files import (
    REQUEST_BYTES,
    placeholder_of,
    read_json,
    reserve_space,
    sync_directory,
    write_reserved,
)

CLEANING = "cleaning"
_NEXT = "next"
_ATTEMPT = re.compile(r"attempt-[0-9]+")
_PATH = re.compile(r"""(?<![\w./-])/[^\s"'`=:,;|&<>(){}\[\]]+""")
"""Pattern of an absolute path inside of a longer text, such as `--from=PATH`."""
_BETWEEN_ATTEMPTS = (BEFORE, SLURM_NAME)
_KEPT_BY_DAEMON = re.compile(rf"{BEGUN}-[0-9]+\.json")
OURS = re.compile(
    r"(attempt|spec|run|exit|ended|request|finder|heartbeats|slurm)\.json|progress\.jsonl|ledger|family"
    r"|lock|stop|notify\.sock|importable|\..*\.(new|room)"
    r"|(rank-[0-9]+|supervisor|closing|thinning|uploading|fetching|exporting)\.log"
    r"|(tokens\.u32|eval\.u32|packs\.u64)(\.index)?"
)
"""Names of the files that the daemon, the supervisor and the trainer write into the directory
of an attempt.
"""


@dataclass(frozen=True, kw_only=True)
class RemovableFiles:
    """The files of one job in the state directory. `size_bytes` is their total size, and
    `outputs_bytes` is the size of the outputs.

    `places` are the directories of the job, and `output_places` the directories of its outputs.
    Each directory is listed twice: as it is named, and with symbolic links resolved, because other
    jobs may use either path.
    """

    own: Path
    places: tuple[str, ...]
    output_places: tuple[str, ...]
    logs: tuple[Path, ...]
    outputs: tuple[Path, ...]
    size_bytes: int
    outputs_bytes: int


class EndedJob(NamedTuple):
    """An ended job that may be selected for removal: number, state, and time of its end in
    seconds since the epoch.
    """

    id: int
    state: str
    ended: float | None


class NotRemovable(Exception):
    """The job cannot be removed. The message says why."""


def selected_jobs(jobs: Sequence[EndedJob], wanted: CleanRequest, now: float) -> list[EndedJob]:
    """Return the jobs among the ended `jobs` that the request `wanted` selects, the oldest first.
    The `keep` jobs that ended last are not selected. `now` is in seconds since the epoch.
    """
    over = [job for job in jobs if job.state in wanted.states]
    over.sort(key=lambda job: (job.ended or 0.0, job.id))
    meant = over[: -wanted.keep] if wanted.keep else over
    if wanted.jobs is not None:
        named = frozenset(wanted.jobs)
        meant = [job for job in meant if job.id in named]
    if wanted.older_than_seconds is not None:
        meant = [job for job in meant if now - (job.ended or now) > wanted.older_than_seconds]
    return meant


def job_files(jobs_dir: Path, job: JobRow, attempts: Sequence[AttemptRow]) -> RemovableFiles:
    """Return the files in the directory of the job.

    Raises OSError. Raises NotRemovable if the directory is not a job directory of this
    daemon.
    """
    own = jobs_dir / str(job.id)
    if own.is_symlink():
        raise NotRemovable(
            f"{own} is a link to files that may be in use elsewhere; remove the link yourself"
        )
    logs, outputs, reported = [], [], _reported_checkpoints(attempts)
    for entry in _entries(own):
        mine = entry.name in (BEFORE, HELD_LOG, OWN, SLURM_NAME) or bool(
            _ATTEMPT.fullmatch(entry.name)
        )
        mine |= bool(_KEPT_BY_DAEMON.fullmatch(entry.name))
        if mine and not _holds_outputs(entry, reported):
            logs.append(entry)
        elif not _is_empty(entry):
            outputs.append(entry)
        else:
            logs.append(entry)
    outputs += _output_in_another_job(jobs_dir, own, Path(job.output_dir))
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


def _output_in_another_job(jobs_dir: Path, own: Path, output: Path) -> list[Path]:
    """Return the output directory of a job that wrote into another job's directory below
    `jobs_dir`; an empty list for any other job.

    Raises NotRemovable if the output, with links resolved, lies among other files of the daemon.
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
        raise NotRemovable(
            f"its output directory {output} is among the daemon's files; remove the output yourself"
        )
    return [place] if os.path.lexists(place) else []


def _entries(directory: Path) -> list[Path]:
    try:
        return sorted(directory.iterdir())
    except FileNotFoundError:
        return []


def _reported_checkpoints(attempts: Sequence[AttemptRow]) -> list[Path]:
    """Return the paths of the checkpoints that the program of the job has reported, with
    symbolic links resolved.
    """
    paths = (last_report.last_report(attempt).checkpoint_path for attempt in attempts)
    return [Path(_real(path)) for path in paths if path]


def _holds_outputs(entry: Path, reported: Sequence[Path]) -> bool:
    """Return whether `entry`, an attempt's directory, has files that the program wants to keep."""
    place = _real(str(entry))
    if entry.is_symlink() or any(path.is_relative_to(place) for path in reported):
        return True
    if not entry.is_dir():
        return False
    names = (each.name for each in entry.iterdir())
    if entry.name == OWN:
        return any(name not in _BETWEEN_ATTEMPTS for name in names)
    return any(not OURS.fullmatch(name) for name in names)


def _is_empty(entry: Path) -> bool:
    """Return whether `entry` is a directory that is empty or has only the lock of a run."""
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
class NamedPath:
    """A path that a job file contains under the key `key`, alone or inside of a longer text.
    `real` has symbolic links resolved.
    """

    key: str
    text: str
    real: str

    def is_in(self, place: str) -> bool:
        """Return whether this path is `place`, or lies inside of the directory `place`."""
        return any(is_within(text, place) for text in (self.text, self.real))


def paths_in_job_file(spec_text: str, output_dir: str) -> list[NamedPath]:
    """Return every path in the job file. Blocks while a file system does not respond."""
    try:
        named = [*texts_of(json.loads(spec_text)), ("output_dir", output_dir)]
    except (ValueError, RecursionError):  # in any case, the paths in it are protected
        named = [("its job file", spec_text), ("output_dir", output_dir)]
    found, known, mounts = list[NamedPath](), dict[str, str](), Mounts()
    for key, text in named:
        names = [real := _real(text), mounts.first_name(real)]
        if key != "output_dir":
            within = _PATH.sub(lambda path: _followed(path[0], known), text)
            names.append(within)
            names.append(_PATH.sub(lambda path: mounts.first_name(path[0]), within))
        others = (name for name in dict.fromkeys(names) if name not in (text, real))
        found += [NamedPath(key=key, text=text, real=name) for name in (real, *others)]
    return found


def texts_of(tree: object, key: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted key, text) for every text in the job file that contains a path."""
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
    except ValueError:  # it contains characters that no path can contain
        return text


def _followed(path: str, known: dict[str, str]) -> str:
    """Return `path` with symbolic links resolved.

    `known` caches the resolved directories, because a command may name thousands of files in
    one directory.
    """
    parent, _, name = path.rstrip("/").rpartition("/")
    if name in ("", ".", ".."):
        return _real(path)
    if parent not in known:
        known[parent] = _real(f"{parent}/").rstrip("/")
    followed = f"{known[parent]}/{name}"
    return _real(followed) if os.path.islink(followed) else followed  # noqa: PTH114  # speed


def names_of(*paths: str) -> tuple[str, ...]:
    """Return all names of each path: the path itself, the path with symbolic links resolved,
    and the path below the first mount of its file system.
    """
    real, mounts = list(map(_real, paths)), Mounts()
    return tuple(dict.fromkeys((*paths, *real, *map(mounts.first_name, real))))


def note_intent(state_dir: Path, job_id: int, *, outputs: bool) -> None:
    """Write an intent: a small file that says that the job is being removed. It is flushed to
    the disk. Raises OSError.

    `outputs` is True if the outputs of the job are removed, too.
    """
    directory = state_dir / CLEANING
    directory.mkdir(exist_ok=True, mode=0o700)
    sync_directory(state_dir)
    intent = directory / str(job_id)
    with suppress(FileNotFoundError):
        placeholder_of(directory / _NEXT).rename(placeholder_of(intent))
    write_reserved(intent, json.dumps({"outputs": outputs}))


def reserve_intent(state_dir: Path) -> None:
    """Reserve disk space for the next intent, so that a job can be removed from a full disk."""
    with suppress(OSError):
        (state_dir / CLEANING).mkdir(exist_ok=True, mode=0o700)
        reserve_space(state_dir / CLEANING / _NEXT, 0, REQUEST_BYTES)


def unfinished_removals(state_dir: Path) -> dict[int, bool]:
    """Return the jobs with a removal that has not finished: job number -> whether the outputs are
    removed, too.
    """
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
    """Return whether the removal of the job has begun and is not finished."""
    return (state_dir / CLEANING / str(job_id)).exists()


def forget_intent(state_dir: Path, job_id: int) -> None:
    """Remove the intent file of a job after its removal has finished. Raises OSError."""
    (state_dir / CLEANING / str(job_id)).unlink(missing_ok=True)
    reserve_intent(state_dir)


def remove_job_files(files: RemovableFiles, *, outputs: bool) -> None:
    """Remove the files of a job, and the job's directory if it is empty afterwards. Raises
    OSError.

    If the job's directory belongs to root and this process does not, the job's directories in it
    are only emptied; `remove_empty` removes them.
    """
    for path in _paths_to_remove(files, outputs=outputs):
        _remove(path)
    parents = {files.own, *(path.parent for path in files.outputs)}
    for directory in parents - {files.own.parent}:
        if not _may_change(directory.parent):
            continue
        if directory.is_dir() and not directory.is_symlink() and not any(directory.iterdir()):
            directory.rmdir()


def remove_empty(jobs_dir: Path, files: RemovableFiles, *, outputs: bool) -> None:
    """Remove the directories that are left after the user of the job has called `remove_job_files`.
    Raises OSError.

    The user may not remove entries of the daemon's directories. A directory is removed only if it
    is empty.
    """
    for path in _paths_to_remove(files, outputs=outputs):
        if path.parent != files.own:
            continue  # in another job's directory, which is not this user's to change
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        else:
            path.unlink(missing_ok=True)
    with suppress(FileNotFoundError):
        if files.own.parent == jobs_dir and not any(files.own.iterdir()):
            files.own.rmdir()


def _paths_to_remove(files: RemovableFiles, *, outputs: bool) -> tuple[Path, ...]:
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
    """A mount: the directory `root` of the file system on `device` appears at the path `place`."""

    device: bytes
    root: str
    place: str


class Mounts:
    """The current mounts of this process. They show under which other names a file is visible
    through bind mounts.
    """

    def __init__(self, text: bytes | None = None) -> None:
        """Read the mounts from the file `MOUNTS`. With `text`, use this text instead of the
        contents of the file.
        """
        try:
            lines = (MOUNTS.read_bytes() if text is None else text).splitlines()
        except OSError:
            lines = []
        self._all = [_mount(line.split()) for line in lines if len(line.split()) > 4]

    def first_name(self, path: str) -> str:
        """Return the name of `path` below the first mount of its file system. `path` must
        contain no symbolic links.
        """
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
    """Return the result of `job_files` as JSON for `files_in`. Raises OSError."""
    try:
        files = job_files(Path(jobs_dir), job, attempts)
    except NotRemovable as why:
        return {"stays": str(why)}
    return {
        **asdict(files),
        "own": str(files.own),
        "logs": list(map(str, files.logs)),
        "outputs": list(map(str, files.outputs)),
    }


def files_in(answer: Mapping[str, Any]) -> RemovableFiles:
    """Return the files in `answer`, the result of `removable_files`. Raises NotRemovable."""
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
    """Return the result of `paths_in_job_file` as JSON for `named_paths_in`."""
    return [asdict(mention) for mention in paths_in_job_file(spec_text, output_dir)]


def named_paths_in(answer: Sequence[Mapping[str, str]]) -> list[NamedPath]:
    """Return the named paths in `answer`, the result of `mentioned_paths`."""
    return [NamedPath(**each) for each in answer]


def remove_files(files: RemovableFiles, outputs: bool) -> None:
    """Call `remove_job_files`, in a child process. Raises OSError."""
    remove_job_files(files, outputs=outputs)


CLEANING_LOOKS = (removable_files, mentioned_paths, remove_files)
