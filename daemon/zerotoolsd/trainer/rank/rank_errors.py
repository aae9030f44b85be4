"""The end of a rank: exit codes that the supervisor and the daemon act on, and their errors."""

from __future__ import annotations

from zerotools.core.errors import BadFile, ZerotoolsError
from zerotoolsd.supervisor.transient_errors import NOT_READY

EXIT_DONE = 0
EXIT_CRASH = 1
EXIT_BAD_JOB = 64
"""The job cannot run as it is written: a restart would fail again."""
EXIT_BAD_CHECKPOINT = 65
EXIT_NOT_READY = 69
"""The machine could not do it now: the job is started again, which costs it no restart."""
EXIT_STOPPED = 75
"""Stopped on request, at a step boundary, with that step saved."""


class BadCheckpoint(BadFile):
    """The checkpoint to resume from is damaged, or lacks tensors of the model."""


class CheckpointGone(BadFile):
    """The checkpoint was whole when it was chosen and is not any more: the next attempt finds the
    newest that is."""


class MachineNotReady(ZerotoolsError):
    """A disk or a file server gives errors that pass by themselves, or another node is away."""


class StoppedBefore(ZerotoolsError):
    """A stop was requested before the run had anything to save."""


class Diverged(ZerotoolsError):
    """The loss or the gradient is not finite any more."""


class OutOfGpuMemory(ZerotoolsError):
    """An allocation on the GPU failed. It may succeed at another time: others use the GPU too."""


class TooLargeForGpu(ZerotoolsError):
    """The first step does not fit into a GPU that the job has for itself: it never will."""


def exit_code(error: BaseException) -> int:
    """Return the exit status for an error that ends the rank."""
    if isinstance(error, BadCheckpoint):
        return EXIT_BAD_CHECKPOINT
    if isinstance(error, MachineNotReady):
        return EXIT_NOT_READY
    if isinstance(error, StoppedBefore):
        return EXIT_STOPPED
    if isinstance(error, OutOfGpuMemory | CheckpointGone):
        return EXIT_CRASH
    return EXIT_BAD_JOB if isinstance(error, ZerotoolsError) else EXIT_CRASH


def kind(error: BaseException) -> str:
    """Return its word in the error datagram."""
    words = {
        EXIT_BAD_CHECKPOINT: "bad_checkpoint",
        EXIT_BAD_JOB: "bad_job",
        EXIT_NOT_READY: NOT_READY,
    }
    return words.get(exit_code(error), "crash")


def sentence(error: BaseException) -> str:
    """Return one line about an error, for people."""
    text = " ".join(str(error).split())
    if isinstance(error, ZerotoolsError) and text:
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
