"""Runs a job in a batch script: `python -m zerotoolsd.slurm.runner.batch JOB_DIRECTORY
SUBMISSION`."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from zerotools.core.errors import ZerotoolsError
from zerotools.jobs.slurm.job_directory import JobDirectory
from zerotools.jobs.slurm.slurm_commands import SlurmCommands
from zerotoolsd.slurm.runner.liveness import LivenessReader
from zerotoolsd.slurm.runner.run_attempts import SIGNALS, AttemptRunner, allocation_of
from zerotoolsd.slurm.runner.slurm_job_record import JobState
from zerotoolsd.supervisor.spawn_child import handle_until_exit
from zerotoolsd.supervisor.start_ranks import become_subreaper
from zerotoolsd.supervisor.transient_os_errors import error_text, is_transient

MOST_KILLS = 10
"""The largest number of times that a killed process is replaced."""
_PR_SET_PDEATHSIG = 1


def run_despite_kills(run: Callable[[bool], int]) -> int:
    """Call `run(False)` in a child process, and return its exit status.

    For Slurm, a job ends with the process of its batch script. So if the child is killed by
    SIGKILL, for example because memory ran out, another child calls `run(True)`. Child processes of
    the killed one, such as srun, continue as children of this process.
    """
    become_subreaper()
    child, received = 0, set[int]()

    def pass_on(number: int, _: object) -> None:
        received.add(number)
        if child:
            with suppress(ProcessLookupError):
                os.kill(child, number)

    handle_until_exit(pass_on, *SIGNALS)
    status = 0
    for kills in range(MOST_KILLS + 1):
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # until the child can handle them
        parent = os.getpid()
        child = os.fork()
        if not child:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent:
                os._exit(1)
            return run(kills > 0)
        for number in received:
            os.kill(child, number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        status = _wait(child)
        if status != -signal.SIGKILL:
            break
    return status if status >= 0 else 128 - status


def _wait(child: int) -> int:
    """Return the exit status of the process `child`, and reap other children that end before it."""
    while True:
        pid, status = os.wait()
        if pid == child:
            return os.waitstatus_to_exitcode(status)


def main(path: str, submission: str) -> int:
    """Run the job with the directory `path`. Return the exit status."""
    commands, directory = SlurmCommands(), JobDirectory(Path(path))
    try:
        found = allocation_of(commands, os.environ)
        return run_despite_kills(
            lambda again: AttemptRunner(directory, int(submission), found, commands).run(
                after_kill=again
            )
        )
    except ZerotoolsError as error:
        print(f"zerotools: {error}", file=sys.stderr)
        _record_end(directory, int(submission), str(error))
        return error.exit_code
    except OSError as error:
        if is_transient(error):  # Slurm may start the job again
            raise
        _record_end(directory, int(submission), error_text(error))
        raise


def _record_end(directory: JobDirectory, submission: int, why: str) -> None:
    """Record that the job has stopped because its attempts cannot be run, if this is possible and
    no other copy of the batch script runs one.
    """
    with suppress(ZerotoolsError, OSError):
        newest = max(directory.attempts(), default=0)
        place = directory.attempt_path(newest)
        if newest and LivenessReader(place, directory.path).alive():
            return
        if directory.end(submission) is None and max(directory.submissions()) == submission:
            state = JobState(directory, submission, os.environ["SLURM_JOB_ID"])
            state.halt(why)
            state.finish()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
