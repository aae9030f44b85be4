"""Points at which tests can make the daemon die, as in a power loss.

`ZEROTOOLSD_CRASH_AT=<name>` kills the daemon by SIGKILL when it first reaches that point.
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


def crash_at(name: str) -> None:
    """Kill the daemon here if the environment variable ZEROTOOLSD_CRASH_AT is `name`."""
    if os.environ.get(VARIABLE) == name:
        os.kill(os.getpid(), signal.SIGKILL)
