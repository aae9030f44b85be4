"""Every error that zerotools raises on purpose, split by who can correct it.

- ZerotoolsError
  - BadRequest          the caller asked for something impossible          exit 2
  - BadFile             a file is damaged, incomplete or of another kind   exit 3
    - Incomplete        a part of a tensor is missing
  - Unsupported         legitimate, but zerotools does not do it           exit 4
  - DaemonError         the daemon does not answer, or refuses             exit 5
    - DaemonUnreachable
    - DaemonRefused
  - HostUnreachable     another machine cannot be reached by ssh           exit 5
  - SlurmUnreachable    Slurm's controller does not answer                 exit 5
  - JobFailed           a job that was followed to its end failed          exit 6
  - TimedOut            the awaited event did not come in time             exit 124

A command without an error ends with 0, or with 1 if it found differences or damage. `estimate` ends
with 7 if a training does not fit.

A message is one sentence that names the file and the tensor, gives the two numbers that
disagree, and ends with the action to take. `exit_code` is the exit status of the command line,
`code` a stable word for programs.
"""

from __future__ import annotations

EXIT_DONE = 0
EXIT_DIFFERENCES = 1
EXIT_TOO_LARGE = 7
"""The exit status if `estimate` finds that none of the given trainings fits."""
EXIT_SYSTEM = 71
"""The exit status if the operating system refused: a full disk, a missing permission, no memory."""
EXIT_TIMEOUT = 124
"""The exit status if the awaited event did not come in time; the `timeout` of coreutils uses the
same status.
"""
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
"""The exit status if the program that reads the output has ended; a shell shows the same status
for SIGPIPE.
"""


class ZerotoolsError(Exception):
    """The base class of all errors; it is never raised itself.

    The daemon's client sets two attributes: `status` is the HTTP status of the daemon's response,
    and `code` is the daemon's word for the error.
    """

    exit_code = 1
    code: str = "failed"
    status: int | None = None

    def __init__(
        self, message: str = "", *, status: int | None = None, code: str | None = None
    ) -> None:
        super().__init__(message)
        if status is not None:
            self.status = status
        if code:
            self.code = code


class BadRequest(ZerotoolsError):
    """The request is wrong: a bad option, a missing path, an output that exists."""

    exit_code = 2
    code = "bad_request"


class BadFile(ZerotoolsError):
    """A file is damaged, incomplete, or not a checkpoint."""

    exit_code = 3
    code = "bad_file"


class Incomplete(BadFile):
    """Elements of a tensor are in no file, or their position is beyond the end of the file."""


class Unsupported(ZerotoolsError):
    """The file or the request is valid, but zerotools does not handle this kind."""

    exit_code = 4
    code = "unsupported"


class DaemonError(ZerotoolsError):
    """The daemon could not be reached, or refused the request."""

    exit_code = 5
    code = "daemon_failed"


class DaemonUnreachable(DaemonError):
    """No program answers on the daemon's socket."""

    code = "daemon_unreachable"


class AnswerLost(DaemonUnreachable):
    """The request was sent but no response came, so it is unknown whether the daemon acted on
    it."""

    code = "answer_lost"


class DaemonRefused(DaemonError):
    """The daemon answered with an error; `status` and `code` say which."""

    code = "refused"


class HostUnreachable(ZerotoolsError):
    """A machine that holds the files cannot be reached, or its connection broke."""

    exit_code = 5
    code = "host_unreachable"


class SlurmUnreachable(ZerotoolsError):
    """Slurm's controller does not answer, so the state of its jobs is unknown."""

    exit_code = 5
    code = "slurm_unreachable"


class JobFailed(ZerotoolsError):
    """A job that the command followed ended in failure."""

    exit_code = 6
    code = "job_failed"


class TimedOut(ZerotoolsError):
    """The event that a command waits for did not happen within the given time."""

    exit_code = EXIT_TIMEOUT
    code = "timeout"
