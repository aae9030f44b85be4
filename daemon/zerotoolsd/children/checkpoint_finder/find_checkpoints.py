"""Chooses the checkpoint to continue from. Then reports every further checkpoint that becomes
complete.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from zerotools.core.errors import ZerotoolsError
from zerotools.formats import FORMATS
from zerotools.formats.detect import formats_in
from zerotools.formats.safetensors.choose_model_files import choose_files
from zerotools.formats.safetensors.header import read_header
from zerotools.io.files.directory_entries import names_in
from zerotools.io.huggingface.model_index import refuse_missing
from zerotools.ops.inspection.completeness import (
    Completeness,
    check_completeness,
    damage_sentences,
    torn_files,
)
from zerotoolsd.children.checkpoint_finder.candidate_checkpoints import (
    Candidate,
    candidate_of,
    candidates_in,
    without_incomplete,
)
from zerotoolsd.supervisor.durable_files import read_json, write_json
from zerotoolsd.supervisor.run_checkpoint_finder import LAST
from zerotoolsd.supervisor.transient_os_errors import is_transient

POLL_SECONDS = 2.0
SLEEP_FACTOR = 10
"""After a scan, the finder pauses for this multiple of its duration. Network file systems are
slow."""


class CheckpointSearch:
    """The search for checkpoints of one attempt.

    `settings` has these keys:

        checkpoint_dir: the directory to search, or None.
        before: a file with the contents that the directory had before the job's first attempt.
        told: the newest checkpoint that each earlier attempt recorded, the newest first.
        reported: the checkpoints that the program itself reported.
        given: the checkpoint to start from if the job itself has saved no checkpoint.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        directory = settings["checkpoint_dir"]
        self._directory = None if directory is None else Path(directory)
        self._reported_before = [Path(path) for path in settings["told"]]
        self._reported = [Path(path) for path in settings["reported"]]
        self._given: str | None = settings["given"]
        self._before = self._read_before(Path(settings["before"]))
        self._unlisted = ""
        self._judged: dict[Path, str] = {}
        self._seen: dict[Path, str] = {}

    def _read_before(self, path: Path) -> dict[str, str]:
        """Return the contents that the directory had before the first attempt. At the first
        attempt, record the contents in `path`.

        Entries that have not changed since then do not belong to the job.
        """
        known = read_json(path)
        if known is None:
            known = {str(each.path): each.fingerprint for each in self._listed()}
            write_json(path, known)
        elif str(self._directory) in known:  # an older version took all files in it for one
            noted = path.stat().st_mtime_ns
            old = (each for each in self._listed() if each.changed <= noted)
            known |= {str(each.path): each.fingerprint for each in old}
        return known

    def _listed(self) -> list[Candidate]:
        if self._directory is None:
            return []
        try:
            return candidates_in(self._directory)
        except ZerotoolsError as error:
            self._log_error_once(error)
            return []

    def _log_error_once(self, error: Exception) -> None:
        if str(error) != self._unlisted:  # and not again at every scan
            print(error, file=sys.stderr)
        self._unlisted = str(error)

    def _own(self) -> list[Candidate]:
        before = self._before
        own = (each for each in self._listed() if before.get(str(each.path)) != each.fingerprint)
        return without_incomplete(list(own))

    def choose(self) -> dict[str, Any]:
        """Choose the newest complete checkpoint of the job. No process of the job may run
        meanwhile.

        Checkpoints that the program itself reported come first, in any layout. If none of these is
        complete, checkpoints that the search found are used. A directory that a crash left
        incomplete is skipped.

        Returns a dict with the keys `resume_from` (the chosen path; if the job has no checkpoint,
        the value of the setting `given`), `passed_over` (the skipped checkpoints) and `lost`.
        `lost` is None, or the reason why the job does not start again: it had complete checkpoints,
        which the ranks reported or an earlier search found, and none of them is complete any more.

        Raises OSError for a transient error of the disk or the file server; then the result is
        unknown.
        """
        passed_over: list[dict[str, str]] = []
        reported, found = self._candidates(passed_over)
        self._judged |= {each.path: each.fingerprint for each in (*reported, *found)}
        chosen, told = (
            self._given,
            {_real(path) for path in (*self._reported_before, *self._reported)},
        )
        damaged: list[str] = []
        for each in (*_newest_first(reported), *_newest_first(found)):
            is_told = _real(each.path) in told
            why = damage_of(each.path) if each in reported else _fault(each, is_told)
            if why is None:
                chosen, damaged = str(each.path), []
                break
            if why:
                passed_over.append({"path": str(each.path), "why": why})
                damaged += [why] if is_told else []
        lost = _none_is_whole(damaged[0]) if damaged else None
        return {"resume_from": chosen, "passed_over": passed_over, "lost": lost}

    def _candidates(
        self, passed_over: list[dict[str, str]]
    ) -> tuple[list[Candidate], list[Candidate]]:
        """Return the candidates that the program reported, and the candidates that the search
        found. Add missing ones to `passed_over`.
        """
        own = {_real(each.path): each for each in self._own()}
        reported: dict[str, Candidate] = {}
        for path in dict.fromkeys((*self._reported_before, *self._reported)):
            by_program, place = path in self._reported, _real(path)
            if place in own and not by_program:
                continue
            candidate = candidate_of(path)
            if candidate is not None:
                (reported if by_program else own)[place] = candidate
            elif path in self._reported_before:
                passed_over.append({"path": str(path), "why": f"{path} does not exist any more"})
        others = [each for place, each in own.items() if place not in reported]
        return list(reported.values()), others

    def news(self, *, at_rest: bool) -> Iterator[dict[str, Any]]:
        """Yield checkpoints that have become complete, the oldest first.

        Nothing is yielded for a program that reports its checkpoints itself, and during errors of
        the disk or the file server. A checkpoint that is still growing is checked only after two
        scans found it unchanged. `at_rest` is True if no process writes any more.
        """
        if self._reported:
            return
        try:
            yield from self._news(at_rest)
        except OSError as error:
            if not is_transient(error):
                raise
            self._log_error_once(error)

    def _news(self, at_rest: bool) -> Iterator[dict[str, Any]]:
        listed = self._own()
        for each in reversed(_newest_first(listed)):
            if self._judged.get(each.path) == each.fingerprint:
                continue
            if at_rest or self._seen.get(each.path) == each.fingerprint:
                seen = check_candidate(each)
                self._judged[each.path] = each.fingerprint
                if seen.is_checkpoint and seen.problem is None:
                    yield {"path": str(each.path), "step": _step(each, seen)}
        self._seen = {each.path: each.fingerprint for each in listed}


def _none_is_whole(why: str) -> str:
    return (
        f"no checkpoint of this job is complete: {why}; the job does not start from the beginning "
        "by itself: put a complete checkpoint back and resume the job, or submit its job file "
        "again to start from the beginning"
    )


def _newest_first(found: Any) -> list[Candidate]:
    def age(each: Candidate) -> tuple[int, int]:
        return (each.changed, each.number or 0)

    return sorted(found, key=age, reverse=True)


def _fault(found: Candidate, is_told: bool) -> str | None:
    """Return the reason why a checkpoint that was found is not used; None if the checkpoint is
    used.

    The reason is empty if `found` is not a checkpoint at all, and no program reported it as one
    (`is_told`).
    """
    seen = check_candidate(found)
    return seen.problem if seen.problem is None or seen.is_checkpoint or is_told else ""


def _real(path: Path) -> str:
    """Return `path` with symbolic links resolved, because the program and the job may use different
    paths for one file.
    """
    return os.path.realpath(path)


def _step(candidate: Candidate, seen: Completeness) -> int | None:
    return candidate.number if seen.step is None else seen.step


def start_search(settings: Mapping[str, Any]) -> tuple[CheckpointSearch | None, dict[str, Any]]:
    """Start the search. Return the search, and the first line that the finder prints, with the
    checkpoint to continue from.

    After a transient error of the disk or the file server, the search is None, and the line has the
    reason.
    """
    try:
        search = CheckpointSearch(settings)
        return search, search.choose()
    except OSError as error:
        if not is_transient(error):
            raise
        place = error.filename or settings["checkpoint_dir"]
        why = f"{place} cannot be searched for checkpoints: {error.strerror}"
        return None, {"not_ready": why}


def main(arguments: Sequence[str]) -> int:
    """Search as the file `arguments[0]` says, until standard input ends. Return the exit status.

    With LAST as the second argument, report all complete checkpoints once, and end.
    """
    settings = read_json(Path(arguments[0]))
    assert settings is not None, f"{arguments[0]} does not exist"
    if arguments[1:] == [LAST]:
        for found in CheckpointSearch(settings).news(at_rest=True):
            _print_message(found)
        return 0
    search, answer = start_search(settings)
    _print_message(answer)
    if search is None:
        return 0
    took = 0.0
    while not _input_ended(max(POLL_SECONDS, SLEEP_FACTOR * took)):
        began = time.monotonic()
        for found in search.news(at_rest=False):
            _print_message(found)
        took = time.monotonic() - began
    for found in search.news(at_rest=True):
        _print_message(found)
    return 0


def _input_ended(seconds: float) -> bool:
    ready, _, _ = select.select([0], [], [], seconds)
    return bool(ready) and not os.read(0, 1)


def _print_message(message: Mapping[str, Any]) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")


_TENSORS = ".safetensors"


def check_candidate(found: Candidate) -> Completeness:
    """Check whether the candidate `found` is a complete checkpoint.

    Raises OSError for a transient error of the disk or the file server.
    """
    return _guarded(lambda: _of_separate_files(found) or check_completeness(found.path), found.path)


def damage_of(path: Path) -> str | None:
    """Return a sentence on the damage of a checkpoint that the program reported; None if it has no
    damage. Raises OSError, as `check_candidate`.
    """
    return _guarded(
        lambda: Completeness(True, problem=next(damage_sentences(path), None)), path
    ).problem


def _guarded(look: Callable[[], Completeness], path: Path) -> Completeness:
    try:
        return look()
    except OSError as error:
        if is_transient(error):
            raise
        return Completeness(True, problem=f"{path}: {error.strerror}")
    except ZerotoolsError as error:
        return Completeness(True, problem=str(error))
    except Exception as error:  # one file that confuses a reader must not hide all the others
        return Completeness(True, problem=f"{path}: {type(error).__name__}: {error}")


def _of_separate_files(found: Candidate) -> Completeness | None:
    """Check whether `found`, a directory of safetensors files without an index, is complete. Return
    None if it is another kind of candidate.

    zerotools reads such a directory as one model, with each tensor name in one file. Here each file
    may be a separate model, such as a model and its average.
    """
    path = found.path
    if not path.is_dir():
        return None
    names = names_in(path) - found.others
    tensors = sorted(name for name in names if name.endswith(_TENSORS))
    if len(tensors) < 2 or formats_in(path, names, FORMATS)[:1] != ["safetensors"]:
        return None
    chosen = choose_files(path)
    if chosen.weight_map is not None or not set(tensors) <= set(chosen.names):
        return None
    headers = [read_header(path / name) for name in tensors]
    if any(header.starts is not None for header in headers):
        return None
    refuse_missing(path, tensors)
    return Completeness(True, problem=next(torn_files(path), None))
