"""Runs one attempt, from its lock to `exit.json`.

The steps are: take the lock (a second supervisor exits here), reserve disk space for `exit.json`,
write `run.json` (the identity of the supervisor), start the ranks, write `exit.json` (the outcome).
Each step is on the disk before the next one begins. A directory that has a `run.json` is never
started again. Before `run.json` is written, a second process exists: the supervisor's parent, which
writes `exit.json` if the supervisor is killed (`keeper_process`).
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import time
from collections.abc import Collection, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from zerotoolsd.supervisor import procfs
from zerotoolsd.supervisor.attempt_cgroup import AttemptGroup, NotDelegated, group_name, make_group
from zerotoolsd.supervisor.attempt_plan import (
    ATTEMPT,
    EXIT,
    EXIT_LOCKED,
    EXIT_NO_LIMITS,
    EXIT_USED,
    GOES_ON,
    LOCK,
    REQUEST,
    RUN,
    STOP,
    Plan,
)
from zerotoolsd.supervisor.durable_files import placeholder_of, read_json, write_json
from zerotoolsd.supervisor.exit_record import process_ledgers
from zerotoolsd.supervisor.exit_record.decide_outcome import (
    Verdict,
    judge_of,
    judge_stalled,
    was_out_of_memory,
    with_limits,
)
from zerotoolsd.supervisor.exit_record.first_failure import error_line
from zerotoolsd.supervisor.exit_record.keeper_process import Records, run_keeper
from zerotoolsd.supervisor.exit_record.process_ledgers import RankLedger
from zerotoolsd.supervisor.gpu_locks import acquire_locks
from zerotoolsd.supervisor.hook_commands import THINNING_LOG, UPLOADING_LOG, run_until_stop
from zerotoolsd.supervisor.rank_log import log_line
from zerotoolsd.supervisor.rank_reports import Progress
from zerotoolsd.supervisor.run_checkpoint_finder import Finder, NoAnswer
from zerotoolsd.supervisor.spawn_child import Execute, execute_program
from zerotoolsd.supervisor.start_ranks import become_subreaper
from zerotoolsd.supervisor.stop.kill_descendants import kill_all
from zerotoolsd.supervisor.stop.leftover_processes import cut_short
from zerotoolsd.supervisor.supervise_loop import RankMonitor
from zerotoolsd.supervisor.transient_os_errors import NOT_READY, is_transient

LOCK_SECONDS = 2.0
"""Seconds to wait for the lock of the run directory. A process that only tests whether it is
locked holds the lock for an instant.
"""
HELPERS_SECONDS = 2.0
"""Seconds that the finder and the hook commands of an attempt have to end after SIGKILL."""
CUT_OFF = "it was interrupted"
FETCHING_LOG = "fetching.log"
EXPORTING_LOG = "exporting.log"
_PREPARED = {
    os.EX_TEMPFAIL: NOT_READY,
    -signal.SIGKILL: "killed",
    -signal.SIGTERM: "killed",
}
"""Outcome of an attempt for the status with which a command failed before the ranks."""


def main(arguments: Sequence[str], execute: Execute = execute_program) -> int:
    """Supervise the attempt in the directory `arguments[0]`. Return the exit status of this
    process.

    `execute` turns a forked child into the program of a rank.
    """
    os.umask(0o077)
    os.chdir(arguments[0])
    lock = _acquire_lock()
    if lock is None:
        return EXIT_LOCKED
    if Path(RUN).exists() or Path(EXIT).exists():
        return EXIT_USED
    for ignored in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        # A handler that does nothing: unlike SIG_IGN it is not inherited by the ranks.
        signal.signal(ignored, lambda *_: None)
    become_subreaper()
    tree = read_json(Path(ATTEMPT))
    assert tree is not None
    plan = Plan.from_json(tree)
    try:
        group = _make_group(plan)
    except (NotDelegated, OSError) as error:
        log_line(f"the limits of the job cannot be set: {error}")
        return EXIT_NO_LIMITS
    # Before the fork in `run_keeper`: both processes then hold the locks, until the last one ends.
    locks = acquire_locks(plan.gpu_locks)
    return run_keeper(
        plan,
        lambda records, ledger: supervise(plan, records, ledger, locks.refusal, execute),
        group,
    )


def _make_group(plan: Plan) -> AttemptGroup | None:
    """Create the control group for the processes of the attempt. Return None if no group is
    needed or control groups are not available.

    Raises NotDelegated and OSError if the job requires limits that cannot be set.
    """
    if not plan.cgroups and not plan.limits and not plan.wished_limits:
        return None
    name = group_name(plan.job_id, plan.attempt, plan.token)
    if plan.wished_limits:
        with suppress(NotDelegated, OSError):
            return make_group(name, {**plan.limits, **plan.wished_limits}, own=(os.getpid(),))
    try:
        return make_group(name, plan.limits, own=(os.getpid(),))
    except (NotDelegated, OSError):
        if plan.limits:
            raise
        return None


def _acquire_lock() -> int | None:
    fd = os.open(LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                return None
            time.sleep(0.02)
        else:
            return fd


def supervise(
    plan: Plan,
    records: Records,
    ledger: RankLedger,
    refusal: str | None = None,
    execute: Execute = execute_program,
) -> None:
    """Start the ranks, wait until they end, kill all processes that remain, and write `exit.json`.

    `refusal` is the reason why the machine cannot start any rank now; None if it can.
    """
    become_subreaper()
    started, clock = time.time(), time.monotonic()
    spare = os.open(os.devnull, os.O_RDONLY)  # to find processes when all others are in use
    progress = Progress(ledger.finished)
    group = records.group
    watch = RankMonitor(plan, progress, ledger, group, execute)
    identity = {
        **_identity(os.getpid()),
        "keeper": _identity(os.getppid()),
        "boot_id": procfs.boot_id(),
        "token": plan.token,
        "cgroup": None if group is None else str(group.path),
        "started": started,
        "started_clock": clock,
    }
    write_json(Path(RUN), identity)
    notify_systemd()
    refused = None if refusal is None else Verdict(NOT_READY, refusal)
    failure = refused or _fetch(watch) or _find(watch) or _start(watch)
    if failure is None:
        watch.note_ranks(identity)
        watch.run()
        failure = _not_started(watch)
    os.close(spare)
    killed = kill_all(watch.kill_seconds, spare=watch.helpers, note=ledger.ended, group=group)
    left = killed.left_behind({rank.pid: rank.index for rank in watch.ranks})
    if not watch.ranks:  # it is the finder that hangs, before anything of the job has begun
        left = [{**line, "helper": True} for line in left]
    if watch.finder is not None:
        watch.finder.finish(progress)
        left += _end_helpers(known={line["pid"] for line in left})
    for rank in watch.ranks:
        if rank.status is None:
            rank.status, rank.killed = killed.statuses.get(rank.pid), True
    watch.close()
    judge = judge_of(plan)
    verdict = failure or judge(
        watch.ranks, progress, stop=watch.stop_reason, killed_because=watch.killed_because
    )
    if watch.stalls.cause is not None:
        verdict = judge_stalled(
            verdict,
            watch.stalls.cause,
            watch.stalls.rank,
            watch.ranks,
            complete=progress if plan.own_program and progress.finished else None,
            own_program=plan.own_program,
        )
    out_of_memory = was_out_of_memory(verdict, group)
    if group is not None:
        verdict = with_limits(verdict, group)
        group.remove()
    if watch.stop_reason is not None:
        watch.handle_stop_request()  # another reason may have arrived, such as a cancel
    record = _record(watch, verdict, left, started) | {"out_of_host_memory": out_of_memory}
    record |= _run_closing_commands(watch, verdict, records, record | _times(clock))
    record["uploaded"] = progress.uploaded
    records.exit.write(record | _times(clock))
    process_ledgers.remove_process_tree(Path())
    if records.ended is not None:
        records.ended.drop()
    for name in (REQUEST, STOP):  # no process reads or writes these any more
        with suppress(OSError):
            placeholder_of(Path(name)).unlink(missing_ok=True)
    progress.close()


def _run_closing_commands(
    watch: RankMonitor, verdict: Verdict, records: Records, record: dict[str, Any]
) -> dict[str, Any]:
    """Run the commands that follow after the ranks, such as an export or an upload. Return the
    result of each command, keyed by name.

    These commands run if the ranks have finished, or have saved and stopped.
    """
    plan, found = watch.plan, dict[str, Any]()
    if verdict.outcome not in ("finished", "stopped") or not watch.ranks:
        return found
    is_done = verdict.outcome == "finished"
    if is_done and records.ended is not None:
        # Power may fail while an export runs for minutes: the training itself is over.
        commands = {"closing": plan.closing, "uploading": plan.uploading}
        cut_off = {name: {"why": CUT_OFF} for name, command in commands.items() if command}
        records.ended.write(record | cut_off)
    if plan.uploading and (is_done or watch.stop_reason not in GOES_ON):  # the last checkpoint

        def until() -> bool:
            watch.progress.drain()  # the socket holds ten lines
            return watch.out_of_time()

        found["uploading"] = run_until_stop(plan, plan.uploading, until, UPLOADING_LOG)
        watch.progress.drain()
    if plan.closing and is_done:
        found["closing"] = run_until_stop(plan, plan.closing, watch.stop_asked)
    if plan.thinning and is_done:  # for the last checkpoint
        run_until_stop(plan, plan.thinning, watch.stop_asked, THINNING_LOG)
    return found


def notify_systemd() -> None:
    """Notify systemd (sd_notify(3)) that `run.json` exists, if systemd started this supervisor.

    The variable NOTIFY_SOCKET is removed from the environment, so that child processes
    cannot use it.
    """
    address = os.environ.pop("NOTIFY_SOCKET", "")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as link:
        try:
            link.connect("\0" + address[1:] if address[0] == "@" else address)
            link.send(b"READY=1")
        except OSError as error:  # it continues: the daemon finds it by run.json
            log_line(
                f"the service manager does not accept the notification of the start: "
                f"{error.strerror}"
            )


def _end_helpers(known: Collection[int]) -> list[dict[str, Any]]:
    """Kill the checkpoint finder and all other remaining processes. Return the records of the
    processes that survive.

    These processes use no GPU. They may hang on a file system that does not respond.
    """
    left = kill_all(HELPERS_SECONDS, spare=known).left_behind({})
    return [{**line, "helper": True} for line in left]


def _times(clock: float) -> dict[str, float]:
    return {"ended": time.time(), "ran_seconds": time.monotonic() - clock}


def _identity(pid: int) -> dict[str, int | None]:
    process = procfs.read_process(pid)
    return {"pid": pid, "start_ticks": None if process is None else process.start_ticks}


def _fetch(watch: RankMonitor) -> Verdict | None:
    """Download the checkpoint to resume from, if it is in an object store, and export the model
    that the job evaluates.

    Return None on success; otherwise return the verdict that ends the attempt.
    """
    plan = watch.plan
    return _prepare(
        watch, plan.fetching, FETCHING_LOG, "fetches a checkpoint", "no checkpoint can be fetched"
    ) or _prepare(
        watch, plan.exporting, EXPORTING_LOG, "exports the model", "no model can be exported"
    )


def _prepare(
    watch: RankMonitor, command: Sequence[str], log: str, doing: str, problem: str
) -> Verdict | None:
    if not command:
        return None
    watch.progress.record_wait(doing)
    done = run_until_stop(watch.plan, command, watch.stop_asked, log)
    watch.progress.drain()
    watch.progress.record_wait(None)
    if done["why"] is None:
        return None
    if done["status"] is None and watch.stop_asked():
        return Verdict("stopped", "stopped before it began")
    outcome = _PREPARED.get(done["status"], "not_started")
    return Verdict(outcome, f"{problem}: {done['why']}")


def _find(watch: RankMonitor) -> Verdict | None:
    """Find the checkpoint to resume from, and put its path into the environment of the ranks. The
    search for newer checkpoints continues while the ranks run.

    Return None on success; otherwise return the verdict that ends the attempt.
    """
    if not watch.plan.finder:
        return None
    try:
        finder = Finder(watch.plan)
        choice = finder.choose(watch.stop_asked, watch.report_finder_wait)
    except OSError as error:
        cause = f"{watch.plan.finder[0]} cannot be started: {error.strerror}"
        return _blame(cause, error, "crashed")
    except NoAnswer as error:
        return Verdict(NOT_READY if error.is_killed else "crashed", str(error))
    if choice is None:
        return Verdict("stopped", "stopped before it began")
    if choice.not_ready is not None:
        return Verdict(NOT_READY, choice.not_ready)
    for path, why in choice.passed_over:
        watch.progress.add_skipped_checkpoint(path, why)
    if choice.lost is not None:
        return Verdict("bad_checkpoint", choice.lost)
    if choice.resume_from is not None:
        env = {**watch.plan.env, "ZEROTOOLS_RESUME_FROM": choice.resume_from}
        watch.plan = watch.plan._replace(env=env)
    watch.add_finder(finder)
    return None


def _start(watch: RankMonitor) -> Verdict | None:
    try:
        watch.spawn()
    except OSError as error:
        return _blame(f"{watch.plan.argv[0]} cannot be started: {error.strerror}", error)
    return None


def _not_started(watch: RankMonitor) -> Verdict | None:
    found = watch.cannot_start
    if found is None:
        return None
    return Verdict(NOT_READY, str(found)) if found.is_ours else _blame(str(found), found.error)


def _blame(cause: str, error: OSError, outcome: str = "not_started") -> Verdict:
    """Return a verdict for `error` with the outcome `outcome`, or `not_ready` if the machine
    lacks disk space or file descriptors.
    """
    return Verdict(NOT_READY if is_transient(error) else outcome, cause)


def _record(
    watch: RankMonitor, verdict: Verdict, left: Sequence[dict[str, Any]], started: float
) -> dict[str, Any]:
    rank, progress = verdict.rank, watch.progress
    return {
        "token": watch.plan.token,
        "outcome": verdict.outcome,
        "cause": verdict.cause,
        "rank": None if rank is None else rank.index,
        "exit_code": verdict.exit_code,
        "signal": rank and rank.signal,
        "last_error": None if rank is None else error_line(watch.ranks[rank.index].log.tail()),
        "last_lines": None if rank is None else watch.ranks[rank.index].log.last_lines(),
        "ranks": [rank.to_json() for rank in watch.ranks],
        "stop_reason": watch.stop_reason,
        "steps_done": progress.steps_done,
        "progress": progress.last_step,
        "evaluation": progress.evaluation,
        "checkpoint": progress.checkpoint,
        "uploaded": progress.uploaded,
        "peak_gpu_bytes": progress.peak_gpu_bytes,
        "peak_host_bytes": progress.peak_host_bytes or None,
        "started": started,
        "unkillable": list(left),
        "cut_short": cut_short(watch.left),
        "stalled": watch.stalls.cause is not None,
    }
