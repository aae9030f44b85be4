"""Decides the outcome of an attempt: one word, and one sentence about the cause.

`judge_of` returns the function that decides the outcome for a kind of job. If the supervisor of an
attempt was killed, `inferred_record` makes the attempt's record from the ledger of its ranks.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from zerotoolsd.supervisor.attempt_cgroup import AttemptGroup
from zerotoolsd.supervisor.attempt_plan import GOES_ON, OUTSIDE, TIME_LIMIT, Plan
from zerotoolsd.supervisor.durable_files import open_regular
from zerotoolsd.supervisor.exit_record.first_failure import (
    EXIT_BAD_CHECKPOINT,
    EXIT_BAD_JOB,
    EXIT_NOT_READY,
    EndedRank,
    FirstFailure,
    first_failed_rank,
    lost_elsewhere,
)
from zerotoolsd.supervisor.exit_record.process_ledgers import RankLedger
from zerotoolsd.supervisor.start_ranks import KnownRank
from zerotoolsd.supervisor.transient_os_errors import NOT_READY

EXIT_STOPPED = 75


class RankReports(Protocol):
    """The reports that the ranks sent before they ended."""

    @property
    def errors(self) -> Sequence[dict[str, Any]]: ...
    @property
    def trained(self) -> bool: ...
    @property
    def steps_done(self) -> int: ...
    @property
    def checkpoint(self) -> dict[str, Any] | None: ...
    @property
    def finished(self) -> bool:
        """Return whether the program has reported that the job is complete."""

    @property
    def awaited(self) -> int | None:
        """Return the number of the rank that the others waited for at the last heartbeat (the
        straggler); None if unknown.
        """


class Verdict(NamedTuple):
    """The outcome of an attempt.

    `outcome` is one of the daemon's OUTCOMES. `cause` explains it in one sentence. `rank` is the
    rank that failed first; None if no rank failed.
    """

    outcome: str
    cause: str
    rank: EndedRank | None = None
    status: int | None = None

    @property
    def exit_code(self) -> int | None:
        """Return the exit code of the rank that failed first, or of all ranks; None if unknown."""
        return self.status if self.rank is None else self.rank.exit_code


class Judge(Protocol):
    """A function that decides the outcome of an attempt after all of its ranks have ended.

    `stop` is the reason of a requested stop; None if no stop was requested. `killed_because` is the
    reason for which the supervisor killed the ranks; None if the supervisor did not kill the ranks,
    or if a rank failed by itself.
    """

    def __call__(
        self,
        ranks: Sequence[EndedRank],
        progress: RankReports,
        *,
        stop: str | None,
        killed_because: str | None,
    ) -> Verdict: ...


def is_abnormal(rank: EndedRank, *, own_program: bool = False) -> bool:
    """Return whether `rank` failed by itself: it neither finished nor stopped on request.

    Only the built-in trainer reports a stop by EXIT_STOPPED, so `own_program`, a program of the
    user, has failed with this status.
    """
    ends = (0,) if own_program else (0, EXIT_STOPPED)
    return rank.status is not None and not rank.killed and rank.exit_code not in ends


def judge_ranks(
    ranks: Sequence[EndedRank],
    progress: RankReports,
    *,
    stop: str | None,
    killed_because: str | None,
) -> Verdict:
    """Decide the outcome of an attempt of the built-in trainer. See `Judge` for the arguments."""
    broken = [rank for rank in ranks if is_abnormal(rank)]
    if broken:
        return _blame(_first_failure(ranks, broken, progress), progress.errors)
    if all(rank.exit_code == 0 for rank in ranks):
        return _finished(progress)
    if killed_because is not None:
        idle_stop = stop not in (None, OUTSIDE) and not progress.trained
        return Verdict("stopped" if idle_stop else "killed", killed_because)
    saved = progress.checkpoint["step"] if progress.checkpoint else 0
    if stop is None:
        # With the outcome "stopped" the job would be queued again at once, and again each time.
        cause = f"stopped at step {progress.steps_done} without a request"
        return Verdict("crashed", cause, status=EXIT_STOPPED)
    if stop == OUTSIDE:
        cause = f"saved at step {saved} and stopped by a SIGTERM that zerotools did not send"
        return Verdict("crashed", cause, status=EXIT_STOPPED)
    return Verdict("stopped", f"saved at step {saved} and stopped", status=EXIT_STOPPED)


def judge_program(
    ranks: Sequence[EndedRank],
    progress: RankReports,
    *,
    stop: str | None,
    killed_because: str | None,
) -> Verdict:
    """Decide the outcome for a user's program.

    After a requested stop the outcome is `stopped` for any exit status, unless the program reported
    that the job is complete. `ranks` has the process of the launcher, or each process of
    `launcher = "plain"`.
    """
    broken = [rank for rank in ranks if is_abnormal(rank, own_program=stop is None)]
    if stop is None and broken:
        return _blame(_first_failure(ranks, broken, progress), progress.errors, own_program=True)
    if stop is None or any(rank.signal not in (None, signal.SIGTERM) for rank in broken):
        return judge_ranks(ranks, progress, stop=stop, killed_because=killed_because)
    if progress.finished:
        return _finished(progress)
    if broken:
        verdict = _blame(_first_failure(ranks, broken, progress), progress.errors, own_program=True)
        by_signal = verdict.rank is None or verdict.rank.signal is not None
        return verdict._replace(
            outcome="killed" if by_signal or stop == OUTSIDE else "stopped",
            cause=f"{verdict.cause}, after a request to stop",
        )
    if killed_because is not None:
        return Verdict("killed", killed_because)
    saved = progress.checkpoint
    how = f"saved at step {saved['step']} and stopped" if saved else "stopped without a checkpoint"
    if stop == OUTSIDE:
        return Verdict("crashed", f"{how} by a SIGTERM that zerotools did not send", status=0)
    return Verdict("stopped", how, status=0)


def judge_watched(
    ranks: Sequence[EndedRank],
    progress: RankReports,
    *,
    stop: str | None,
    killed_because: str | None,
) -> Verdict:
    """Decide the outcome of an attempt that only watches a process which a user started by
    hand.

    The decision uses the report of the watcher, the only rank of the attempt.
    """
    verdict = judge_program(ranks, progress, stop=stop, killed_because=killed_because)
    said = progress.errors[-1].get("message") if progress.errors else None
    if stop is not None and any(rank.signal == signal.SIGTERM for rank in ranks):
        # The watcher was asked to end before it listened for it, and has signalled no process.
        return Verdict("stopped", "no longer watched; the process continues")
    if verdict.outcome == "crashed" and verdict.rank is not None:
        failed = f"its watcher failed, and the process itself may still run: {verdict.cause}"
        return verdict._replace(cause=said if isinstance(said, str) else failed)
    if verdict.rank is not None or stop is None:
        return verdict
    if stop == TIME_LIMIT:
        return verdict._replace(cause="ended on request")
    why = ": its watcher got a SIGTERM that zerotools did not send" if stop == OUTSIDE else ""
    return verdict._replace(cause=f"no longer watched{why}; the process continues")


def judge_one_node(
    ranks: Sequence[EndedRank],
    progress: RankReports,
    *,
    stop: str | None,
    killed_because: str | None,
) -> Verdict:
    """Decide the outcome for the ranks of one node of a job on several nodes.

    If ranks of this node only lost the connection to a rank of another node, the outcome is
    `not_ready`: the failure began on the other node.
    """
    broken = [rank for rank in ranks if is_abnormal(rank)]
    said = lost_elsewhere(broken, progress.errors, ranks) if broken else None
    if said is None:
        return judge_ranks(ranks, progress, stop=stop, killed_because=killed_because)
    return Verdict(NOT_READY, f"another node of the job is gone ({said[:200]})")


def judge_of(plan: Plan) -> Judge:
    """Return the function that decides the outcome for this kind of attempt."""
    if plan.watches:
        return judge_watched
    if plan.meeting and not plan.own_program:
        return judge_one_node
    return judge_program if plan.own_program else judge_ranks


def judge_stalled(
    verdict: Verdict,
    cause: str,
    index: int | None,
    ranks: Sequence[EndedRank],
    *,
    own_program: bool,
    complete: RankReports | None = None,
) -> Verdict:
    """Return the verdict on an attempt that was ended because its ranks made no progress (a stall).

    `verdict` is the verdict without regard to the stall. `cause` describes the stall, and `index`
    is the rank that the others waited for. If a user's program exits with status 0 after the stop,
    it counts as finished only if `complete` has its report that the job is complete.
    """
    if complete is not None:
        done = _finished(complete)
        return done._replace(cause=f"{done.cause}; ended, because {cause}")
    if verdict.outcome == "finished" and not own_program:
        return verdict
    rank = next((rank for rank in ranks if rank.index == index), None)
    saved = all(each.exit_code in (0, EXIT_STOPPED) for each in ranks)
    then = "; after that it saved and stopped" if saved else ""
    return Verdict("crashed", f"ended, because {cause}{then}", rank)


def with_limits(verdict: Verdict, group: AttemptGroup) -> Verdict:
    """Return `verdict` with a cause that also names the limit of the control group `group` that the
    attempt exceeded. Return `verdict` unchanged if it exceeded no limit.
    """
    if verdict.outcome not in ("crashed", "killed"):
        return verdict
    memory, processes, cause = group.memory_words, group.processes_words, verdict.cause
    if memory is not None and verdict.rank is not None and verdict.rank.signal == signal.SIGKILL:
        cause = f"rank {verdict.rank.index} was killed by {memory}"
    elif memory is not None:
        cause = f"{cause}; processes were killed by {memory}"
    if processes is not None:
        cause = f"{cause}; {processes}"
    return verdict._replace(cause=cause)


def was_out_of_memory(verdict: Verdict, group: AttemptGroup | None) -> bool:
    """Return whether the kernel's OOM killer ended the rank that failed first.

    Either the machine had no memory left, or the control group reached its memory limit.
    """
    rank = verdict.rank
    if verdict.outcome != "crashed" or rank is None or rank.signal != signal.SIGKILL:
        return False
    return rank.oom_killed is True or (group is not None and group.memory_kills() > 0)


def _finished(progress: RankReports) -> Verdict:
    done = progress.steps_done
    return Verdict("finished", f"finished after step {done}" if done else "finished", status=0)


def _first_failure(
    ranks: Sequence[EndedRank], broken: Sequence[EndedRank], progress: RankReports
) -> FirstFailure:
    return first_failed_rank(ranks, broken, progress.errors, progress.awaited)


def _blame(
    found: FirstFailure, errors: Sequence[dict[str, Any]], *, own_program: bool = False
) -> Verdict:
    rank, outcomes = found.rank, {EXIT_BAD_JOB: "bad_job"}
    if not own_program:
        outcomes[EXIT_BAD_CHECKPOINT] = "bad_checkpoint"
    outcome = outcomes.get(rank.exit_code or 0, "crashed")
    own = [error for error in errors if error["rank"] == rank.index]
    message = own[-1].get("message") if own else None
    if rank.exit_code == EXIT_NOT_READY and own and own[-1].get("kind") == NOT_READY:
        outcome = NOT_READY  # by its status alone, a program of the user's would run for ever
    if found.evidence is not None:
        how = f"rank {rank.index} did not answer the other ranks, and was killed; their error"
        return Verdict("crashed", f"{how}: {found.evidence}", rank)
    if rank.signal is not None:
        how = f"rank {rank.index} was ended by signal {rank.signal} ({_signal_name(rank.signal)})"
        if rank.signal == signal.SIGKILL:
            how += _who_kills(rank)
    else:
        how = f"rank {rank.index} exited with {rank.exit_code}"
    if not isinstance(message, str):
        return Verdict(outcome, how, rank)
    return Verdict(outcome, message if outcome != "crashed" else f"{how}: {message}", rank)


def _who_kills(rank: EndedRank) -> str:
    if rank.oom_killed:
        return ": the kernel has just killed a process of this machine because memory ran out"
    if rank.oom_killed is None:
        return ", which the kernel does when memory runs out"
    return " from another program, not from the kernel for lack of memory"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"


FOLLOWING = ("closing", "uploading")
"""Names of the steps that follow a finished run. A step that was interrupted is recorded."""
_LONGEST_REASON = 1000


class _NoReports(NamedTuple):
    """An empty set of rank reports. The real reports were lost with the killed supervisor.

    The daemon adds the reports that it finds in `progress.jsonl`.
    """

    errors: Sequence[dict[str, Any]] = ()
    trained: bool = False
    steps_done: int = 0
    checkpoint: dict[str, Any] | None = None
    awaited: int | None = None
    finished: bool = False


def inferred_record(
    plan: Plan,
    ledger: RankLedger,
    reaped: Collection[int],
    run: Mapping[str, Any],
    stop: str | None,
    killed: str,
) -> dict[str, Any]:
    """Return the record of an attempt after its supervisor was killed.

    Args:
        reaped: the ranks that ended before the supervisor was killed. A SIGKILL of any other rank
            is an effect of that kill.
        killed: a sentence on the supervisor's death.
        stop: the reason of a requested stop; None if no stop was requested.
    """
    ranks = [
        KnownRank(index, line.status, line.killed or _is_ours(line.status, index in reaped))
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
    """Return a record for each step that should follow the run (such as an export or an upload) but
    was not done. The format is that of `supervise`.
    """
    names = {"finished": FOLLOWING, "stopped": () if stop in GOES_ON else ("uploading",)}
    follows = [name for name in names.get(outcome, ()) if getattr(plan, name)]
    return {name: {"why": f"{killed} before the attempt had ended"} for name in follows}


def _is_ours(status: int | None, was_reaped: bool) -> bool:
    if was_reaped:
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
    reports = _NoReports(finished=ledger.has_finished)
    return judge_of(plan)(ranks, reports, stop=stop, killed_because=None)


def stop_reason(path: Path) -> str | None:
    """Return the reason of the stop in the supervisor's file `path`; None if it is unreadable."""
    try:
        with os.fdopen(open_regular(path), "rb") as file:
            return file.read(_LONGEST_REASON).decode("utf-8")
    except (OSError, ValueError):
        return None
