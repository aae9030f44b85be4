"""The record of an attempt after its supervisor was killed, from the ledger of its ranks."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zerotoolsd.supervisor.durable import open_regular
from zerotoolsd.supervisor.exit_record.outcome import Verdict, is_abnormal, judge_of
from zerotoolsd.supervisor.exit_record.rank_ledger import RankLedger
from zerotoolsd.supervisor.plan import GOES_ON, Plan
from zerotoolsd.supervisor.ranks import KnownRank
from zerotoolsd.supervisor.transient_errors import NOT_READY

FOLLOWING = ("closing", "uploading")
"""The steps after a finished run, which are recorded if they were cut off."""
_LONGEST_REASON = 1000


@dataclass(frozen=True)
class _NothingTold:
    """Stands for the reports of ranks, which only the supervisor received; the daemon adds those it
    kept."""

    errors: Sequence[dict[str, Any]] = ()
    trained: bool = False
    steps_done: int = 0
    checkpoint: dict[str, Any] | None = None
    awaited: int | None = None
    finished: bool = False


def inferred(
    plan: Plan,
    ledger: RankLedger,
    told: Collection[int],
    run: Mapping[str, Any],
    stop: str | None,
    killed: str,
) -> dict[str, Any]:
    """Return the record of the attempt.

    `told` are the ranks known to have ended while the supervisor lived: a SIGKILL of any other rank
    is a result of the supervisor's death. `killed` is one sentence on that death. `stop` is the
    reason of a requested stop, if there was one.
    """
    ranks = [
        KnownRank(index, line.status, line.killed or _is_ours(line.status, index in told))
        for index, line in enumerate(ledger.lines())
        if line.pid is not None
    ]
    verdict = _verdict(plan, ranks, ledger, stop, killed)
    also = f"; {killed}" if verdict.outcome not in ("lost", NOT_READY) else ""
    rank = verdict.rank
    return {
        "token": plan.token,
        "outcome": verdict.outcome,
        "cause": f"{verdict.cause}{also}",
        "rank": None if rank is None else rank.index,
        "exit_code": verdict.exit_code,
        "signal": rank and rank.signal,
        "ranks": [each.to_json() for each in ranks],
        "stop_reason": stop,
        "started": run.get("started"),
        **_unfinished(plan, verdict.outcome, stop, killed),
    }


def _unfinished(plan: Plan, outcome: str, stop: str | None, killed: str) -> dict[str, Any]:
    """Return the records of steps that were to follow, in the format of `supervise`."""
    names = {"finished": FOLLOWING, "stopped": () if stop in GOES_ON else ("uploading",)}
    follows = [name for name in names.get(outcome, ()) if getattr(plan, name)]
    return {name: {"why": f"{killed} before this had ended"} for name in follows}


def _is_ours(status: int | None, was_told: bool) -> bool:
    if was_told:
        return False
    return status is None or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL)


def _verdict(
    plan: Plan, ranks: Sequence[KnownRank], ledger: RankLedger, stop: str | None, killed: str
) -> Verdict:
    if not ledger.has_begun:
        return Verdict(NOT_READY, f"{killed} before it had started anything")
    cut_off = len(ranks) < plan.processes or any(rank.killed for rank in ranks)
    if cut_off and not any(map(is_abnormal, ranks)):
        return Verdict("lost", f"lost: {killed}")
    told = _NothingTold(finished=ledger.has_finished)
    return judge_of(plan)(ranks, told, stop=stop, killed_because=None)


def stop_reason(path: Path) -> str | None:
    """Return the reason of the requested stop, which the supervisor wrote to the file `path`."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            return file.read(_LONGEST_REASON).decode("utf-8")
    except (OSError, ValueError):
        return None
