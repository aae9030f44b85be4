"""Finds the line of a program's output that explains why it failed. Pure.

It is the last line of the last traceback; without a traceback, the last line that looks like an
error. If several ranks write into one log, lines of ranks that only lost a peer come last:

    [rank1]: RuntimeError: [..] Connection closed by peer [127.0.0.1]:4711
    [rank0]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.   <- this one
    ERROR:torch.distributed.elastic.multiprocessing.api:failed (exitcode: 1) ..

Of an exception group it is the line of the group, not that of an exception in it:

      + Exception Group Traceback (most recent call last):
      | ExceptionGroup: many (2 sub-exceptions)                                         <- this one
      +-+---------------- 1 ----------------
        | ValueError: a
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from zerotoolsd.supervisor.exit_record.first_failure import follows_another

LONGEST = 4096
"""Characters that are kept: who shows it hides secrets first, and then cuts it off."""

_HEADER = "Traceback (most recent call last)"
_GROUP_HEADER = re.compile(r"^ *\+ Exception Group Traceback \(most recent call last\)")
_IN_GROUP = re.compile(r"^ {0,2}\| ")
"""Before the lines of the group itself; those of its exceptions are further to the right."""
_ERROR_LINE = re.compile(r"^(?:\[[^\]]*\]:?\s*)?((?:\w+\.)*\w+)(: .*)?$")
_LAUNCHERS_ERRORS = ("ChildFailedError", "CalledProcessError")
"""Exceptions with which launchers end after losing a rank."""
_RANK = re.compile(r"^\[(?:rank|default)([0-9]+)\]:\s?")
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")
_LIKE_AN_ERROR = re.compile(
    r"\b\w*(?:Error|Exception)\b:?|\b(?:error|fatal|panic|panicked|abort(?:ed|ing)?|assertion|"
    r"out of memory|segmentation fault|core dumped|terminate called|command not found|"
    r"no such file|permission denied|cannot|can't|could not|unable to|invalid)\b",
    re.IGNORECASE,
)
_OF_LAUNCHERS = re.compile(
    r"torch\.distributed\.elastic|torch/distributed/(?:elastic|run)|exitcode\s*:|error_file\s*:|"
    r"traceback\s*:|launch\.py:[0-9]+:sigkill|\bKilling subprocess\b"
)
"""Messages of launchers about ranks that ended."""


def last_error(text: str) -> str | None:
    """Return the line with which the last traceback of `text` ends; a launcher's does not count."""
    found: dict[str, str] = {}
    in_traceback: set[str] = set()
    in_group: set[str] = set()
    for whole in text.splitlines():
        match = _RANK.match(whole)
        rank = match.group(1) if match else ""
        line = _RANK.sub("", whole)
        if rank in in_group:
            line = _IN_GROUP.sub("", line)
        if _GROUP_HEADER.match(line):
            in_group.add(rank)
            in_traceback.add(rank)
        elif line.startswith((_HEADER, "  File ")):
            in_traceback.add(rank)
        elif rank in in_traceback and line[:1].strip() and (match := _ERROR_LINE.match(line)):
            in_traceback.discard(rank)
            in_group.discard(rank)
            if not match.group(1).endswith(_LAUNCHERS_ERRORS):
                before = found.pop(rank, line)
                found[rank] = before if follows_another(line) else line
    return _first_cause(list(found.values()))


def error_line(text: str) -> str | None:
    """Return the line of `text` that explains why a program failed, without escape sequences."""
    plain = _ESCAPES.sub("", text)
    found = last_error(plain) or _first_cause(list(_like_errors(plain)), last=True)
    return None if found is None else found[:LONGEST].strip()


def _like_errors(text: str) -> Iterator[str]:
    for whole in text.splitlines():
        line = _RANK.sub("", whole).strip()
        if not line or _HEADER in line or _OF_LAUNCHERS.search(line):
            continue
        if _LIKE_AN_ERROR.search(line):
            yield line


def _first_cause(lines: list[str], *, last: bool = False) -> str | None:
    """Return the first of `lines`, or the `last`, that does more than report a lost peer."""
    ordered = lines[::-1] if last else lines
    own = [line for line in ordered if not follows_another(line)]
    return next(iter(own or ordered), None)
