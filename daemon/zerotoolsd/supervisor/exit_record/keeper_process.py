"""The keeper: the supervisor's parent, which writes `exit.json` if the supervisor is killed.

A supervisor may be killed after a rank has ended and before `exit.json` is written. Without the
keeper, the exit status of the rank would then be lost, and a finished job would run again. So two
processes always know the status:

    keeper          waits only for the supervisor; every process of the attempt is below it
      supervisor    starts the ranks, and records the end of each in a shared `RankLedger`
        ranks

If the supervisor dies, ranks that have ended and were not reaped become children of the keeper,
which gets their status from the kernel. The kernel kills the ranks that still run (PDEATHSIG), and
the keeper kills all other processes below it. If the keeper dies, the supervisor continues without
it. If both die at the same time, the daemon reads the run directory's record of the ranks
(`ledger`). Keeper and supervisor share the file descriptors of the attempt's lock and of the
reserved disk space for the records.
"""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from zerotoolsd.supervisor.attempt_cgroup import AttemptGroup
from zerotoolsd.supervisor.attempt_plan import ENDED, EXIT, LEDGER, NOTIFY, RUN, STOP, Plan
from zerotoolsd.supervisor.durable_files import (
    LARGEST_RECORD,
    ReservedRecord,
    read_json,
    sync_directory,
)
from zerotoolsd.supervisor.exit_record import process_ledgers
from zerotoolsd.supervisor.exit_record.decide_outcome import FOLLOWING, inferred_record, stop_reason
from zerotoolsd.supervisor.exit_record.process_ledgers import RankLedger
from zerotoolsd.supervisor.rank_log import log_line
from zerotoolsd.supervisor.stop.kill_descendants import kill_all
from zerotoolsd.supervisor.transient_os_errors import NOT_READY, is_transient

KILLED = "its supervisor was killed"


class Records(NamedTuple):
    """The record files of one attempt, in reserved disk space.

    `exit` is `exit.json`. `ended` is `ended.json`, which records that all ranks have ended; None if
    no command runs after the ranks.
    """

    exit: ReservedRecord
    ended: ReservedRecord | None
    group: AttemptGroup | None = None
    """The control group of the attempt's processes; None if the machine does not support it."""


def run_keeper(
    plan: Plan,
    supervise: Callable[[Records, RankLedger], None],
    group: AttemptGroup | None = None,
) -> int:
    """Fork the supervisor and wait until it ends. Return the exit status of this process.

    If the supervisor was killed or failed, write its record. Raises OSError if the disk has no
    space for the attempt's records; in this case no process was started.
    """
    records = Records(
        ReservedRecord(Path(EXIT), plan.processes),
        ReservedRecord(Path(ENDED), plan.processes) if plan.has_final_tasks else None,
        group,
    )
    ledger = RankLedger(plan.processes, Path(LEDGER))
    # The supervisor may start ranks, and the daemon may request a stop, before this process has
    # installed its handler. So SIGTERM stays blocked until then; in the supervisor, until
    # `SignalWaker`.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    child = os.fork()
    if not child:
        _be_supervisor(records, ledger, supervise)
    # The daemon knows the pid of this process, and sends its stop requests here.
    signal.signal(signal.SIGTERM, lambda *_: _forward_sigterm(child))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    # Until it is reaped, no other process gets its pid.
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    signal.signal(signal.SIGTERM, lambda *_: None)
    _, status = os.waitpid(child, 0)
    if status == 0:
        return 0
    if os.WIFSIGNALED(status):  # else the child has logged the reason itself
        log_line(f"the supervisor, pid {child}, was ended by signal {os.WTERMSIG(status)}")
    return _write_exit_record(plan, records, ledger, _trouble(status))


def _trouble(status: int) -> str | None:
    """Return a sentence if the supervisor ended because the machine lacked a resource such as
    disk space; None otherwise.

    `status` is the wait status of the supervisor.
    """
    number = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0
    error = OSError(number, os.strerror(number))
    return f"its supervisor could not continue: {error.strerror}" if is_transient(error) else None


def _be_supervisor(
    records: Records, ledger: RankLedger, supervise: Callable[[Records, RankLedger], None]
) -> None:
    status = 1
    try:
        supervise(records, ledger)
        status = 0
    except OSError as error:  # the status informs the parent
        status = error.errno if error.errno and is_transient(error) else 1
        traceback.print_exc()
    except BaseException:  # as above
        traceback.print_exc()
    finally:
        os._exit(status)


def _forward_sigterm(child: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(child, signal.SIGTERM)


def _write_exit_record(
    plan: Plan, records: Records, ledger: RankLedger, trouble: str | None = None
) -> int:
    # Ends that a killed supervisor recorded: a later SIGKILL came from its own death.
    reaped = {index for index, line in enumerate(ledger.lines()) if line.status is not None}
    killed = kill_all(plan.kill_seconds, note=ledger.ended, group=records.group)
    if records.group is not None:
        records.group.remove()
    with suppress(OSError):
        Path(NOTIFY).unlink()
    if Path(EXIT).exists():
        sync_directory(Path.cwd())
        return 0
    run = _read(RUN)
    if run is None:
        return 1  # it has not begun: the daemon may start it again
    record = _read(ENDED)
    if record is None:
        record = inferred_record(plan, ledger, reaped, run, stop_reason(Path(STOP)), KILLED)
        if trouble is not None and record["outcome"] == "lost":
            record |= {"outcome": NOT_READY, "cause": trouble}
        record |= {"by_keeper": True, "ended": time.time(), "ran_seconds": _ran_seconds(run)}
    cut_off = {"why": f"{KILLED} before the attempt had ended"}
    record |= {name: cut_off for name in FOLLOWING if name in record}
    pids = ((line.pid, index) for index, line in enumerate(ledger.lines()))
    record["unkillable"] = killed.left_behind({pid: n for pid, n in pids if pid is not None})
    records.exit.write(record)
    process_ledgers.remove_process_tree(Path())
    return 0


def _ran_seconds(run: dict[str, Any]) -> float | None:
    began = run.get("started_clock")
    return time.monotonic() - began if isinstance(began, float) else None


def _read(name: str) -> dict[str, Any] | None:
    try:
        return read_json(Path(name), LARGEST_RECORD)
    except (OSError, ValueError) as error:
        log_line(f"{name}: {error}")
        return {} if name == RUN else None
