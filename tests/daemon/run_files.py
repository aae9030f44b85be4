"""What lies in run directories after a test: all of it must be known to whoever removes jobs.

`zerotools clean` takes a name that it does not know for something of the user's, and keeps the job.
So each new file that the daemon, the supervisor or the trainer writes there goes into
`removal.OURS`, or below, where only tests write it.
"""

from __future__ import annotations

import re
from pathlib import Path

from zerotoolsd.cleaning.removal import OURS

OF_TESTS = re.compile(r"waiting-[0-9]+|release|.*\.pid|.*-pid|x|y|z")


def unknown_names(jobs_dir: Path) -> list[str]:
    """The names in attempts' directories that neither `removal.OURS` nor a test accounts for."""
    found = {path.name for path in jobs_dir.glob("[0-9]*/attempt-[0-9]*/*")}
    return sorted(n for n in found if not OURS.fullmatch(n) and not OF_TESTS.fullmatch(n))
