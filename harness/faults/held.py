"""A daemon, supervisor, command or rank that waits until strace is attached.

`held.py [--hold] ROLE ARGUMENT...`. With `--hold`, the process stops itself (SIGSTOP) before it
begins. With `--hold-child`, it stops the process that it forks: the supervisor, which is a child of
its keeper. The roles:

    daemon OPTIONS           zerotoolsd with `stand_in.py` as its ranks
    supervisor DIR           the keeper and the supervisor of a prepared attempt
    backup DIR FILE          `zerotools backup`
    restore DIR FILE         `zerotools restore --release`
    rank OPTIONS             the rank `stand_in.py`
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

STAND_IN = Path(__file__).with_name("stand_in.py")


def daemon(arguments: list[str]) -> int:
    """Run `zerotoolsd` with `stand_in.py` as its ranks, and without checks of the interpreter."""
    from zerotools.jobs.jobfile_tables.spec import JobSpec
    from zerotoolsd.app.run_daemon import main
    from zerotoolsd.service.admission.interpreter_check import Needs

    def command(spec: JobSpec, run_dir: Path) -> tuple[str, ...]:
        return (sys.executable, "-P", str(STAND_IN), "--run-dir", str(run_dir))

    async def check_python(python: str, env: Mapping[str, str], needs: Needs, user: object) -> None:
        """Accept any interpreter."""

    return main(arguments, command=command, check_python=check_python)


def supervisor(arguments: list[str]) -> int:
    """Run the keeper and the supervisor, as `supervisor/entry.py` does."""
    from zerotoolsd.supervisor.main import main

    return main(arguments)


def back_up(arguments: list[str]) -> int:
    """Back up a queue, as `zerotools backup` does."""
    from zerotools.jobs.client import queue_backup

    queue_backup.back_up_queue(Path(arguments[0]), Path(arguments[1]))
    return 0


def restore(arguments: list[str]) -> int:
    """Restore a queue, as `zerotools restore --release` does."""
    from zerotools.jobs.client import queue_backup

    queue_backup.restore_queue(Path(arguments[1]), Path(arguments[0]), release=True)
    return 0


def rank(arguments: list[str]) -> int:
    """Run a rank with the `arguments` that the supervisor gives it."""
    import runpy

    sys.argv = [str(STAND_IN), *arguments]
    runpy.run_path(str(STAND_IN), run_name="__main__")
    return 0


ROLES: dict[str, Callable[[list[str]], int]] = {
    "daemon": daemon,
    "supervisor": supervisor,
    "backup": back_up,
    "restore": restore,
    "rank": rank,
}


def hold_child() -> None:
    """Stop the next process that this process forks (SIGSTOP), before the new process does
    anything.
    """
    fork: Callable[[], int] = os.fork

    def held(*_: Any) -> int:
        os.fork = fork
        pid = fork()
        if not pid:
            os.kill(os.getpid(), signal.SIGSTOP)
        return pid

    os.fork = held


def main(arguments: list[str]) -> int:
    """Run the role that the command line names."""
    if arguments[0] == "--hold":
        os.kill(os.getpid(), signal.SIGSTOP)
    if arguments[0] == "--hold-child":
        hold_child()
    role, *rest = [each for each in arguments if not each.startswith("--hold")]
    return ROLES[role](rest)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
