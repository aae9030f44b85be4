"""Choose what to go on from, then tell of every checkpoint that becomes whole."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from zerotools.core.errors import ZerotoolsError
from zerotools.ops.inspection.completeness import Completeness, check_completeness
from zerotoolsd.finder.candidates import Candidate, candidate_of, candidates_in
from zerotoolsd.supervisor.durable import read_json, write_json
from zerotoolsd.supervisor.trouble import is_of_machine

POLL_SECONDS = 2.0
REST = 10
"""After a look that took long, as on a network file system, so many times as long is waited."""


class Search:
    """One attempt's search. `settings`: `checkpoint_dir`, or None; `before`, a file that says what
    lay there before the job's first attempt; `told`, the paths that its ranks reported, newest
    first; `given`, what to go on from if nothing of the job's own is found."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        directory = settings["checkpoint_dir"]
        self._directory = None if directory is None else Path(directory)
        self._reported = [Path(path) for path in settings["told"]]
        self._given: str | None = settings["given"]
        self._before = self._read_before(Path(settings["before"]))
        self._unlisted = ""
        self._judged: dict[Path, str] = {}
        self._seen: dict[Path, str] = {}

    def _read_before(self, path: Path) -> dict[str, str]:
        """What was there before the first attempt is not the job's, as long as it is unchanged."""
        known = read_json(path)
        if known is None:
            known = {str(each.path): each.fingerprint for each in self._listed()}
            write_json(path, known)
        return known

    def _listed(self) -> list[Candidate]:
        if self._directory is None:
            return []
        try:
            return candidates_in(self._directory)
        except ZerotoolsError as error:
            self._say_once(error)
            return []

    def _say_once(self, error: Exception) -> None:
        if str(error) != self._unlisted:  # and not again at every look
            print(error, file=sys.stderr)
        self._unlisted = str(error)

    def _own(self) -> list[Candidate]:
        before = self._before
        return [each for each in self._listed() if before.get(str(each.path)) != each.fingerprint]

    def choose(self) -> dict[str, Any]:
        """The newest checkpoint of the job that is whole. Nothing writes while this is called.

        A directory that a crash left half-written is passed over, and the program begins anew. What
        its ranks had reported, or an earlier search had found whole, is another matter: where none
        of that is whole any more, the job is not begun again. Raises OSError: the disk or the file
        server gives errors that pass, and none of that is known."""
        passed_over: list[dict[str, str]] = []
        found = {each.path: each for each in self._own()}
        for path in self._reported:
            if path in found:
                continue
            if (candidate := candidate_of(path)) is None:
                passed_over.append({"path": str(path), "why": f"{path} is not there any more"})
            else:
                found[path] = candidate
        chosen, told = self._given, {str(path) for path in found if path in self._reported}
        for each in _newest_first(found.values()):
            seen = _judge(each.path)
            self._judged[each.path] = each.fingerprint
            if seen.problem is None or (not seen.is_checkpoint and each.path in self._reported):
                chosen, told = str(each.path), set()
                break
            if seen.is_checkpoint:
                passed_over.append({"path": str(each.path), "why": seen.problem})
        self._judged |= {path: each.fingerprint for path, each in found.items()}
        damaged = next((each["why"] for each in passed_over if each["path"] in told), None)
        lost = None if damaged is None else _none_is_whole(damaged)
        return {"resume_from": chosen, "passed_over": passed_over, "lost": lost}

    def news(self, *, at_rest: bool) -> Iterator[dict[str, Any]]:
        """Checkpoints that have become whole, the oldest first.

        One that is written to is judged once it was the same in two looks; `at_rest` says that
        nobody can be writing any more. None, while the disk or the file server gives errors.
        """
        try:
            yield from self._news(at_rest)
        except OSError as error:
            if not is_of_machine(error):
                raise
            self._say_once(error)

    def _news(self, at_rest: bool) -> Iterator[dict[str, Any]]:
        listed = self._own()
        for each in reversed(_newest_first(listed)):
            if self._judged.get(each.path) == each.fingerprint:
                continue
            if at_rest or self._seen.get(each.path) == each.fingerprint:
                seen = _judge(each.path)
                self._judged[each.path] = each.fingerprint
                if seen.is_checkpoint and seen.problem is None:
                    yield {"path": str(each.path), "step": _step(each, seen)}
        self._seen = {each.path: each.fingerprint for each in listed}


def _none_is_whole(why: str) -> str:
    return (
        f"no checkpoint of this job is whole, and it does not begin anew by itself: {why}; put one "
        "back that is whole and resume the job, or submit its job file again to begin anew"
    )


def _newest_first(found: Any) -> list[Candidate]:
    def age(each: Candidate) -> tuple[int, int]:
        return (each.changed, each.number or 0)

    return sorted(found, key=age, reverse=True)


def _judge(path: Path) -> Completeness:
    try:
        return check_completeness(path)
    except OSError as error:
        if is_of_machine(error):
            raise
        return Completeness(True, problem=f"{path}: {error.strerror}")
    except Exception as error:  # one file that confuses a reader must not hide all the others
        return Completeness(True, problem=f"{path}: {type(error).__name__}: {error}")


def _step(candidate: Candidate, seen: Completeness) -> int | None:
    return candidate.number if seen.step is None else seen.step


def begun(settings: Mapping[str, Any]) -> tuple[Search | None, dict[str, Any]]:
    """The search, and what to go on from; no search, and why, where the disk or the file server
    gives errors that pass."""
    try:
        search = Search(settings)
        return search, search.choose()
    except OSError as error:
        if not is_of_machine(error):
            raise
        place = error.filename or settings["checkpoint_dir"]
        why = f"{place} cannot be searched for checkpoints: {error.strerror}"
        return None, {"not_ready": why}


def main(arguments: Sequence[str]) -> int:
    """Search as the file `arguments[0]` says, until the input ends. Returns the exit status."""
    settings = read_json(Path(arguments[0]))
    assert settings is not None, f"{arguments[0]} does not exist"
    search, answer = begun(settings)
    _say(answer)
    if search is None:
        return 0
    took = 0.0
    while not _input_ended(max(POLL_SECONDS, REST * took)):
        began = time.monotonic()
        for found in search.news(at_rest=False):
            _say(found)
        took = time.monotonic() - began
    for found in search.news(at_rest=True):
        _say(found)
    return 0


def _input_ended(seconds: float) -> bool:
    ready, _, _ = select.select([0], [], [], seconds)
    return bool(ready) and not os.read(0, 1)


def _say(message: Mapping[str, Any]) -> None:
    os.write(1, json.dumps(message).encode() + b"\n")
