"""Points at which the daemon can be made to die, to try what a power loss would leave behind.

`ZEROTOOLSD_CRASH_AT=<name>` kills the daemon by SIGKILL where it first comes to that point.
"""

from __future__ import annotations

import os
import signal

VARIABLE = "ZEROTOOLSD_CRASH_AT"

LAUNCHING_COMMITTED = "launching-committed"
SUPERVISOR_SPAWNED = "supervisor-spawned"
CANCEL_COMMITTED = "cancel-committed"
YIELD_COMMITTED = "yield-committed"
END_SEEN = "end-seen"
CLEAN_NOTED = "clean-noted"
FILES_REMOVED = "files-removed"
RECORD_REMOVED = "record-removed"


def reach(name: str) -> None:
    """Die here if that is asked for."""
    if os.environ.get(VARIABLE) == name:
        os.kill(os.getpid(), signal.SIGKILL)
