"""Runs a rank in this process: sets the environment, reports errors, and returns the exit status.

It does not import torch before the rank runs.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from zerotools.core.errors import BadRequest
from zerotools.io.files.optional_packages import EXTRAS, install_command
from zerotoolsd.supervisor.heartbeats.shared_heartbeat import (
    DUMP_SIGNAL,
    HeartbeatWriter,
    open_heartbeat,
)
from zerotoolsd.supervisor.heartbeats.stall_limits import IMPORTING_TORCH
from zerotoolsd.trainer.rank.notify_supervisor import Notifier
from zerotoolsd.trainer.rank.rank_errors import EXIT_STOPPED, error_word, exit_code, one_line
from zerotoolsd.trainer.rank.rank_settings import Rank, rank_from

OF_LIBRARIES = {
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "true",  # else one single thread in a process that has forked
}
"""Default values of environment variables that libraries read. The job may set other values."""
NEEDED = ("torch", "transformers", "safetensors", "numpy")


def main(run_dir: Path, started: float) -> NoReturn:
    """Run the rank of the job in `run_dir`, and end the process with one of the exit codes in
    `rank_errors`.

    `started` is the value of `time.monotonic` when the process began.
    """
    rank = rank_from(os.environ)
    heartbeat = open_heartbeat(os.environ, rank.local)
    if heartbeat.connected:
        _print_stacks_on_signal(heartbeat)
    heartbeat.enter("importing")
    notifier = Notifier(os.environ.get("ZEROTOOLS_NOTIFY"), rank.local, heartbeat)
    notifier.enter("init")
    if rank.leads_node:
        notifier.event("phase", doing=IMPORTING_TORCH)
    set_library_defaults()
    try:
        status = _session()(run_dir, rank, notifier, started)
    except (SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:  # torch's CheckpointException is not an Exception
        status = report_failure(error, rank, notifier)
    # Interpreter shutdown would wait for threads of torch that may wait for a lost rank.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def set_library_defaults() -> None:
    """Set the environment variables of `OF_LIBRARIES` that are not set.

    Call this before the libraries are imported.
    """
    for name, value in OF_LIBRARIES.items():
        os.environ.setdefault(name, value)


def _print_stacks_on_signal(heartbeat: HeartbeatWriter) -> None:
    """Print the stacks of all threads whenever the supervisor sends DUMP_SIGNAL.

    The signal handler is C code, so it works while the interpreter waits.
    """
    try:
        faulthandler.register(DUMP_SIGNAL, file=sys.stderr, all_threads=True)
    except (AttributeError, OSError, RuntimeError, ValueError):  # standard error does not exist
        return
    heartbeat.answers_dumps()


def _session() -> Callable[[Path, Rank, Notifier, float], int]:
    try:
        from zerotoolsd.trainer.prepare_and_train import (
            run_training,  # seconds: torch and transformers
        )
    except ModuleNotFoundError as error:
        if error.name not in NEEDED:
            raise
        raise BadRequest(
            f"{sys.executable} has no {error.name}, which training needs; run "
            f"{install_command(*EXTRAS['train'].values())}, or set python in the job file to "
            "another interpreter"
        ) from None
    return run_training


def report_failure(error: BaseException, rank: Rank, notifier: Notifier) -> int:
    """Report `error`, which ends the rank, in the log and to the supervisor.

    Return the exit status.
    """
    status, what = exit_code(error), error_word(error)
    if status == EXIT_STOPPED:
        print(one_line(error), flush=True)
        return status
    if what == "crash":
        traceback.print_exception(error)
    notifier.event("error", kind=what, message=one_line(error))
    if rank.leads_node or what == "crash":
        print(f"rank {rank.index} ends with status {status}: {one_line(error)}", flush=True)
    return status
