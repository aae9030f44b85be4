"""Errors that end a rank, and the exit codes that tell the supervisor and the daemon which error it
was.
"""

from __future__ import annotations

from zerotools.core.errors import BadFile, ZerotoolsError
from zerotoolsd.supervisor.transient_os_errors import NOT_READY

EXIT_DONE = 0
EXIT_CRASH = 1
EXIT_BAD_JOB = 64
"""The job has a mistake. A restart would fail in the same way."""
EXIT_BAD_CHECKPOINT = 65
EXIT_NOT_READY = 69
"""The machine had a transient problem.

The job is started again, without counting this as a restart.
"""
EXIT_STOPPED = 75
"""The rank was stopped on request between two steps. The last step is saved."""


class BadCheckpoint(BadFile):
    """The checkpoint to resume from is damaged, or lacks tensors of the model."""


class CheckpointGone(BadFile):
    """The checkpoint was complete when it was chosen, but is not complete now. The next attempt
    chooses another checkpoint.
    """


class MachineNotReady(ZerotoolsError):
    """A disk or a file server has a transient error, or another node is missing."""


class StoppedBeforeStart(ZerotoolsError):
    """A stop was requested before the run had a state to save."""


class Diverged(ZerotoolsError):
    """The loss, a gradient or a saved value is not finite."""


class OutOfGpuMemory(ZerotoolsError):
    """An allocation on the GPU failed. Another attempt may succeed, because a step has fit into the
    memory before, or another program used the GPU too.
    """


class TooLargeForGpu(ZerotoolsError):
    """The first step does not fit into a GPU that no other program uses. A restart would fail in
    the same way.
    """


def exit_code(error: BaseException) -> int:
    """Return the exit status of a rank that ends with `error`."""
    if isinstance(error, BadCheckpoint):
        return EXIT_BAD_CHECKPOINT
    if isinstance(error, MachineNotReady):
        return EXIT_NOT_READY
    if isinstance(error, StoppedBeforeStart):
        return EXIT_STOPPED
    if isinstance(error, OutOfGpuMemory | CheckpointGone):
        return EXIT_CRASH
    return EXIT_BAD_JOB if isinstance(error, ZerotoolsError) else EXIT_CRASH


def error_word(error: BaseException) -> str:
    """Return the word that stands for `error` in the error datagram to the supervisor."""
    words = {
        EXIT_BAD_CHECKPOINT: "bad_checkpoint",
        EXIT_BAD_JOB: "bad_job",
        EXIT_NOT_READY: NOT_READY,
    }
    return words.get(exit_code(error), "crash")


def one_line(error: BaseException) -> str:
    """Return `error` as one line of text for the log."""
    text = " ".join(str(error).split())
    if isinstance(error, ZerotoolsError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
