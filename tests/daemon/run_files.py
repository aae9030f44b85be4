"""What lies in run directories after a test: all of it must be known to whoever removes jobs.

`zerotools clean` takes a name that it does not know for something of the user's, and keeps the job.
So each new file that the daemon, the supervisor or the trainer writes there goes into
`remove_job_files.OURS`, or below, where only tests write it.
"""

from __future__ import annotations

import re
from pathlib import Path

from zerotoolsd.dispatch.remove_job_files import OURS

OF_TESTS = re.compile(r"waiting-[0-9]+|release|(escape|child|orphan)(\.new)?")


def check_names(jobs_dir: Path) -> None:
    """Raises AssertionError: a name that neither `OURS` nor a test accounts for."""
    found = {path.name for path in jobs_dir.glob("[0-9]*/attempt-[0-9]*/*")}
    unknown = [n for n in found if not OURS.fullmatch(n) and not OF_TESTS.fullmatch(n)]
    assert not unknown, f"files of ours that `clean` does not know: {sorted(unknown)}"
