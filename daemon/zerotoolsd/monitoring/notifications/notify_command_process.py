"""Runs one command, and kills its remaining child processes when it has ended.

Usage: `notify_command_process.py PROGRAM [ARGUMENT...]`. The exit status is the exit status of the
program, or 128 + the number of the signal that ended the program. The program may run as another
user. On SIGTERM, or when the daemon ends, this process kills the program with all its children.
Children in separate sessions are included, because this process becomes the parent of all orphans
among its descendants.
"""

from __future__ import annotations

import ctypes
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

KILL_SECONDS = 2.0
_PR_SET_PDEATHSIG, _PR_SET_NO_NEW_PRIVS = 1, 38


def main(arguments: Sequence[str]) -> int:
    """Run the command `arguments`, and return its exit status."""
    from zerotoolsd.supervisor.start_ranks import become_subreaper
    from zerotoolsd.supervisor.stop.kill_descendants import kill_all

    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    become_subreaper()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    libc.prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    try:
        status = subprocess.Popen(arguments).wait()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        kill_all(KILL_SECONDS)
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    DAEMON = Path(__file__).resolve().parents[3]
    installed = (DAEMON / "zerotools" / "__init__.py").is_file()
    sys.path[:0] = [str(DAEMON), *([] if installed else [str(DAEMON.parent)])]
    sys.exit(main(sys.argv[1:]))
