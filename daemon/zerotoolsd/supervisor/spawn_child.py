"""Starts a program without waiting for it, so that only the child can hang.

`subprocess.Popen` waits until the child has executed its program. If the working directory or the
program is on a file system that does not respond, that wait never ends and cannot be cancelled. So
this module does not wait: the child writes its progress into a pipe, which closes when the program
runs. Examples of the contents of the pipe:

    d             the child enters the directory
    dp            the child executes the program
    dp!2          the program could not be executed: error 2 (ENOENT)
    !2            the child could not enter its control group: error 2
    dm1;p         the binding failed in part (`set_numa_binding`); the program is executed

A child that hangs holds no descriptor of the supervisor, so it does not hold the lock of the
attempt either.
"""

from __future__ import annotations

import atexit
import ctypes
import errno
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from zerotoolsd.supervisor.set_numa_binding import RankBinding, keep_to, kept_of

OOM_SCORE = "500"
NO_PROGRAM = 127
"""Exit status of a child process that could not execute its program."""
_PR_SET_PDEATHSIG = 1
_DIRECTORY, _PROGRAM, _FAILED = b"d", b"p", b"!"
_libc = ctypes.CDLL(None, use_errno=True)

Execute = Callable[[Sequence[str], Mapping[str, str]], object]
"""A function of (argv, environment) that the child process calls last, to execute its program.
It does not return.
"""


def execute_program(argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Replace this process with the program.

    Raises OSError, and ValueError if an argument contains a NUL.
    """
    os.execvpe(argv[0], list(argv), dict(env))


def execute_without_sigterm(argv: Sequence[str], env: Mapping[str, str]) -> None:
    """Replace this process with the program, with SIGTERM blocked.

    A SIGTERM that arrives while the program loads stays pending until the program unblocks it.
    Raises as `execute_program` does.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    execute_program(argv, env)


class CannotStart(Exception):
    """The child process could not execute its program.

    The message is a sentence, and `error` is the OSError. `is_ours` is True if the control group,
    which the daemon made, is the cause, and not the job.
    """

    def __init__(self, what: str, error: OSError, *, is_ours: bool = False) -> None:
        super().__init__(f"{what}: {error.strerror}")
        self.error = error
        self.is_ours = is_ours


class BegunProgram:
    """A forked child process that has not executed its program yet."""

    def __init__(self, pid: int, fd: int, program: str, directory: str) -> None:
        self.pid = pid
        self.fd = fd
        self.began = time.monotonic()
        self._program = program
        self._directory = directory
        self._output = b""

    @property
    def awaited(self) -> str:
        """Return a phrase for the step that the child process has not completed yet: entering its
        control group, entering its directory, or executing its program.
        """
        if not self._done_steps:
            return "its control group"
        in_program = _PROGRAM in self._done_steps
        return self._program if in_program else f"the directory {self._directory}"

    def applied_binding(self, binding: RankBinding) -> RankBinding:
        """Return the part of `binding` that the child process could set."""
        return kept_of(binding, self._done_steps)

    @property
    def _done_steps(self) -> bytes:
        return self._output.partition(_FAILED)[0]

    def is_over(self) -> bool:
        """Return whether the child process has executed its program. Raises CannotStart."""
        while True:
            try:
                part = os.read(self.fd, 64)
            except BlockingIOError:
                return False
            if not part:
                break
            self._output += part
        failed = self._output.partition(_FAILED)[2]
        if failed:
            error = OSError(int(failed), os.strerror(int(failed)))
            how = "started" if _PROGRAM in self._done_steps else "entered"
            raise CannotStart(
                f"{self.awaited} cannot be {how}", error, is_ours=not self._done_steps
            )
        return True

    def close(self) -> None:
        """Close the pipe on which the child process reports its progress."""
        os.close(self.fd)


def start_child(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str,
    output: int,
    umask: int,
    entrance: str | None = None,
    execute: Execute = execute_program,
    binding: RankBinding | None = None,
) -> BegunProgram:
    """Start the command `argv` in the directory `cwd`, without waiting for it. Its output goes to
    the file descriptor `output`.

    `entrance` is the `cgroup.procs` file of the control group that the child enters first. The
    child is bound to processors as `binding` says, as far as possible. The calling process must
    have no threads. Raises OSError.
    """
    reading, writing = os.pipe2(os.O_CLOEXEC)
    parent = os.getpid()
    # A child would take a SIGTERM at this moment for the supervisor's own, and continue.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        pid = os.fork()
        if pid == 0:
            arrange = die_with(parent, umask, entrance)
            _become(argv, env, cwd, output, arrange, writing, execute, binding)
    except OSError:
        os.close(reading)
        os.close(writing)
        raise
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    os.close(writing)
    os.set_blocking(reading, False)
    return BegunProgram(pid, reading, argv[0], cwd)


def _become(
    argv: Sequence[str],
    env: Mapping[str, str],
    cwd: str,
    output: int,
    arrange: Callable[[], None],
    report: int,
    execute: Execute,
    binding: RankBinding | None,
) -> None:
    """Prepare the process and execute `argv`. Called in the child after the fork; never returns."""
    try:
        signal.set_wakeup_fd(-1)
        for each in (signal.SIGTERM, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(each, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        null = os.open(os.devnull, os.O_RDONLY)
        for descriptor, number in ((null, 0), (output, 1), (output, 2)):
            os.dup2(descriptor, number)
        os.closerange(3, report)
        os.closerange(report + 1, os.sysconf("SC_OPEN_MAX"))
        arrange()
        os.write(report, _DIRECTORY)
        if binding is not None:
            os.write(report, keep_to(binding))
        os.chdir(cwd)
        os.write(report, _PROGRAM)
        execute(argv, env)
    except (OSError, ValueError) as error:  # ValueError: a NUL in an argument
        code = getattr(error, "errno", None) or errno.EINVAL
        os.write(report, _FAILED + str(code).encode())
    finally:
        os._exit(NO_PROGRAM)


def die_with(parent: int, umask: int, entrance: str | None = None) -> Callable[[], None]:
    """Return a function that the child process calls between fork and exec.

    The function asks the kernel to kill the child when the supervisor (`parent`) ends, sets
    `umask`, and moves the child into the control group at `entrance`.
    """

    def arrange() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(1)
        if entrance is not None:
            with open(entrance, "w", encoding="ascii") as procs:  # noqa: PTH123  # after a fork
                procs.write("0")
        os.umask(umask)
        # When memory runs out the kernel is to end a rank, and never the daemon.
        with suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(OOM_SCORE, encoding="ascii")

    return arrange


def handle_until_exit(handler: Callable[..., None], *signals: int) -> None:
    """Call `handler` for each of `signals` until this process ends.

    The interpreter restores the default actions when it ends: without this function, a late signal
    would replace the exit status. A handler that is installed later stays as it is.
    """
    for each in signals:
        signal.signal(each, handler)
        atexit.register(_ignore_late, each, handler)


def _ignore_late(number: int, handler: Callable[..., None]) -> None:
    if signal.getsignal(number) == handler:
        signal.signal(number, signal.SIG_IGN)


class SignalWaker:
    """Makes `socket` readable when this process gets SIGCHLD or SIGTERM.

    `asked` is True after a SIGTERM, even if the signal was blocked until this object was made.
    """

    def __init__(self) -> None:
        self.asked = False
        self.socket, self._waker = socket.socketpair()
        self.socket.setblocking(False)
        self._waker.setblocking(False)
        signal.set_wakeup_fd(self._waker.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        handle_until_exit(self._on_term, signal.SIGTERM)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def _on_term(self, *_: object) -> None:
        self.asked = True

    def clear(self) -> None:
        """Read the bytes from the socket, so that the next signal makes it readable again."""
        while True:
            try:
                self.socket.recv(4096)
            except BlockingIOError:
                return

    def close(self) -> None:
        """Stop writing to the socket at signals. The signal handlers stay installed."""
        signal.set_wakeup_fd(-1)
