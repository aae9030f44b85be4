"""Finds the rank that failed first, if several ranks failed. Usually the other ranks fail only
because they lose the connection to the first one.

If one rank fails, all other ranks fail within milliseconds. gloo and NCCL report to the other ranks
that a connection was closed, or a timeout if the first rank hangs. Example with three ranks:

    rank 1   ended by SIGKILL at 20.00 s                                       <- failed first
    rank 0   reported at 20.01 s "Connection closed by peer [127.0.0.1]:4711"  follows
    rank 2   killed by us at 21.00 s, because rank 1 had failed                follows

The first of these rules that finds a rank decides:

1. A rank that ended by itself, without an error about a lost connection. If there are several, the
   rank with the earliest sign of failure (its error or its end). A SIGKILL may be noticed later
   than its effects in other ranks, so `_NOTICED_LATE` seconds are subtracted from its time.
2. A rank that other ranks name in their errors, as gloo's monitored barrier and NCCL's desync
   report do.
3. A rank that still ran when all other ranks had given up waiting. If there are several, the rank
   `awaited`, which the heartbeats show.
4. The first of the ranks that lost a connection.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

EXIT_BAD_JOB = 64
EXIT_BAD_CHECKPOINT = 65
EXIT_NOT_READY = 69
_NOTICED_LATE = 1.0
"""Longest time in seconds by which a SIGKILL of one rank is noticed later than its effects in
other ranks.
"""
_LAST_LINES = 8

_FOLLOWS = (
    r"(?i)"
    r"connection (?:was )?(?:closed|reset|aborted|refused)|closed by (?:remote )?peer|broken pipe|"
    r"socket (?:was )?(?:closed|timeout|timed out)|failed to recv|recvvalue failed|"
    r"timed ?out waiting|\btimed out after\b|wait timeout|application timeout caused pair closure|"
    r"watchdog caught collective|collective operation timeout|heartbeat ?monitor|"
    r"ncclremoteerror|remote process exited or there was a network error|"
    r"communicator was aborted|dist(?:network|store)error|connectionreseterror|"
    r"monitoredbarrier"
)
"""Error messages of ranks that lost a peer or timed out while waiting for one."""
_CLOSED = (
    r"(?i)"
    r"gloo.*(?:connection (?:was )?(?:closed|reset|aborted|refused)|closed by (?:remote )?peer|"
    r"broken pipe|socket (?:was )?closed)|ncclremoteerror|"
    r"remote process exited or there was a network error|"
    r"dist(?:network|store)error|recvvalue failed"
)
"""Error messages of gloo, NCCL and the TCP store for a lost connection to another rank.
Timeouts are not included.
"""
_NAMES = (
    r"(?i)ranks? ([0-9]+(?:, [0-9]+)*) failed to pass monitoredbarrier",
    r"ranks that caused the desync are:\s*-?\s*\[([0-9]+(?:, [0-9]+)*)\]",
)
"""Patterns of error messages that name the rank which did not arrive at a collective."""


class EndedRank(Protocol):
    """A rank that has ended.

    `status` is its wait status (waitpid). `killed` is True if the supervisor killed the
    rank. `ended_clock` is the monotonic time at which the supervisor noticed the end; None
    if unknown.
    """

    @property
    def index(self) -> int: ...
    @property
    def status(self) -> int | None: ...
    @property
    def killed(self) -> bool: ...
    @property
    def exit_code(self) -> int | None: ...
    @property
    def signal(self) -> int | None: ...
    @property
    def ended_clock(self) -> float | None: ...
    @property
    def oom_killed(self) -> bool | None: ...
    def last_lines(self) -> str: ...


class FirstFailure(NamedTuple):
    """The rank that failed first.

    `evidence` is the error message of another rank that lost its connection to this rank; None if
    this rank was found by its own error.
    """

    rank: EndedRank
    evidence: str | None = None


def first_failed_rank(
    ranks: Sequence[EndedRank],
    broken: Sequence[EndedRank],
    errors: Sequence[Mapping[str, Any]],
    awaited: int | None = None,
) -> FirstFailure:
    """Return the rank in `ranks` that failed first.

    `broken` are the ranks that failed by themselves, at least one. `errors` are the errors that the
    ranks reported, in the order of arrival. `awaited` is the number of the rank that the others
    waited for at the last heartbeat (the straggler); None if unknown.
    """
    said = {rank.index: _last_message(rank, errors) for rank in ranks}
    own = [rank for rank in broken if not _follows(rank, said[rank.index])]
    if own:
        return FirstFailure(min(own, key=lambda rank: _first_sign(rank, errors)))
    first = min(broken, key=lambda rank: _first_sign(rank, errors))
    evidence = said[first.index]
    others = {rank.index: rank for rank in ranks if rank not in broken}
    for text in said.values():
        for index in _named(text):
            if index in others:
                return FirstFailure(others[index], _line_that(_FOLLOWS, text))
    if awaited is not None and awaited in others:
        return FirstFailure(others[awaited], _line_that(_FOLLOWS, evidence))
    # A rank that was killed while it was ending may have given up like the other ranks.
    late = [rank for rank in others.values() if not re.search(_FOLLOWS, said[rank.index])]
    if len(late) == 1 and late[0].killed:
        return FirstFailure(late[0], _line_that(_FOLLOWS, evidence))
    return FirstFailure(first)


def lost_elsewhere(
    broken: Sequence[EndedRank], errors: Sequence[Mapping[str, Any]], ranks: Sequence[EndedRank]
) -> str | None:
    """Return the error message of a rank on this node that lost the connection to a rank of another
    node.

    Return None if a rank of this node failed first, or if the first rank that failed is unknown.
    """
    said = {rank.index: _last_message(rank, errors) for rank in ranks}
    if any(not _follows(rank, said[rank.index]) for rank in broken):
        return None
    if any(rank.exit_code == 0 and not rank.killed for rank in ranks):
        return None  # one of this node left the others
    first = min(broken, key=lambda rank: _first_sign(rank, errors))
    return _line_that(_CLOSED, said[first.index])


def _last_message(rank: EndedRank, errors: Sequence[Mapping[str, Any]]) -> str:
    """Return the last error that `rank` reported; otherwise the end of its log."""
    own = [error.get("message") for error in errors if error["rank"] == rank.index]
    if own and isinstance(own[-1], str):
        return own[-1]
    return "\n".join(rank.last_lines().splitlines()[-_LAST_LINES:])


def _follows(rank: EndedRank, said: str) -> bool:
    if rank.signal not in (None, signal.SIGABRT):
        return False
    if rank.exit_code in (EXIT_BAD_JOB, EXIT_BAD_CHECKPOINT, EXIT_NOT_READY):
        return False
    return follows_another(said)


def follows_another(said: str) -> bool:
    """Return whether the text `said` contains an error that a rank reports when another rank has
    failed, such as a lost connection.
    """
    return re.search(_FOLLOWS, said) is not None


def _first_sign(
    rank: EndedRank, errors: Sequence[Mapping[str, Any]]
) -> tuple[bool, float, int, int]:
    """Return a sort key for the rank: the time of its first error or of its end.

    Ranks that refused the job or its checkpoint come last: all ranks refuse at the same time, so
    that time does not show which rank failed first.
    """
    refused = rank.exit_code in (EXIT_BAD_JOB, EXIT_BAD_CHECKPOINT, EXIT_NOT_READY)
    places = [place for place, error in enumerate(errors) if error["rank"] == rank.index]
    clocks = [clock for place in places if (clock := _clock(errors[place])) is not None]
    if rank.ended_clock is not None:
        late = _NOTICED_LATE if rank.signal == signal.SIGKILL else 0.0
        clocks.append(rank.ended_clock - late)
    place = places[0] if places else len(errors)
    outside = rank.signal not in (None, signal.SIGABRT)
    unknown = float("-inf") if outside else float("inf")
    return not refused, min(clocks, default=unknown), place, rank.index


def _clock(error: Mapping[str, Any]) -> float | None:
    clock = error.get("clock")
    return clock if isinstance(clock, float) else None


def _named(text: str) -> list[int]:
    found = (re.search(pattern, text) for pattern in _NAMES)
    return [int(each) for match in found if match for each in match.group(1).split(", ")]


def _line_that(pattern: str, text: str) -> str | None:
    return next((line.strip() for line in text.splitlines() if re.search(pattern, line)), None)


LONGEST = 4096
"""Longest stored error line, in characters. Whoever shows the line masks secrets, then shortens it.
"""

_HEADER = "Traceback (most recent call last)"
_GROUP_HEADER = r"^ *\+ Exception Group Traceback \(most recent call last\)"
_IN_GROUP = r"^ {0,2}\| "
"""Prefix of the traceback lines of an exception group itself. Lines of the exceptions in the
group are indented more.
"""
_ERROR_LINE = r"^(?:\[[^\]]*\]:?\s*)?((?:\w+\.)*\w+)(: .*)?$"
_LAUNCHERS_ERRORS = ("ChildFailedError", "CalledProcessError")
"""Exceptions with which launchers such as torchrun end after they lost a rank."""
_RANK = r"^\[(?:rank|default)([0-9]+)\]:\s?"
_ESCAPES = r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])"
_LIKE_AN_ERROR = (
    r"(?i)"
    r"\b\w*(?:Error|Exception)\b:?|\b(?:error|fatal|panic|panicked|abort(?:ed|ing)?|assertion|"
    r"out of memory|segmentation fault|core dumped|terminate called|not found|"
    r"no such file|permission denied|cannot|can't|could not|unable to|invalid)\b"
)
_OF_LAUNCHERS = (
    r"torch\.distributed\.elastic|torch/distributed/(?:elastic|run)|exitcode\s*:|error_file\s*:|"
    r"traceback\s*:|launch\.py:[0-9]+:sigkill|\bKilling subprocess\b"
)
"""Messages that launchers such as torchrun print about ranks that have ended."""


def last_error(text: str) -> str | None:
    """Return the last line of the last traceback in `text`; None if `text` has no traceback.

    Tracebacks of launchers are ignored. If several ranks printed tracebacks, the first one that is
    not about a lost connection counts.
    """
    found: dict[str, str] = {}
    in_traceback: set[str] = set()
    in_group: set[str] = set()
    for whole in text.splitlines():
        match = re.match(_RANK, whole)
        rank = match.group(1) if match else ""
        line = re.sub(_RANK, "", whole)
        if rank in in_group:
            line = re.sub(_IN_GROUP, "", line)
        if re.match(_GROUP_HEADER, line):
            in_group.add(rank)
            in_traceback.add(rank)
        elif line.startswith((_HEADER, "  File ")):
            in_traceback.add(rank)
        elif rank in in_traceback and line[:1].strip() and (match := re.match(_ERROR_LINE, line)):
            in_traceback.discard(rank)
            in_group.discard(rank)
            if not match.group(1).endswith(_LAUNCHERS_ERRORS):
                before = found.pop(rank, line)
                found[rank] = before if follows_another(line) else line
    return _first_cause(list(found.values()))


def error_line(text: str) -> str | None:
    """Return the line of `text` that explains why a program failed, without escape sequences.
    Return None if there is no such line.
    """
    plain = re.sub(_ESCAPES, "", text)
    found = last_error(plain) or _first_cause(list(_like_errors(plain)), last=True)
    return None if found is None else found[:LONGEST].strip()


def _like_errors(text: str) -> Iterator[str]:
    for whole in text.splitlines():
        line = re.sub(_RANK, "", whole).strip()
        if not line or _HEADER in line or re.search(_OF_LAUNCHERS, line):
            continue
        if re.search(_LIKE_AN_ERROR, line):
            yield line


def _first_cause(lines: list[str], *, last: bool = False) -> str | None:
    """Return the first of the error lines `lines` that is not about a lost connection to another
    rank.

    With `last`, return the last such line instead. If every line is about a lost connection, return
    the first or last of all lines. Return None if `lines` is empty.
    """
    ordered = lines[::-1] if last else lines
    own = [line for line in ordered if not follows_another(line)]
    return next(iter(own or ordered), None)
