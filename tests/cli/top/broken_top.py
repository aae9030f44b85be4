"""`zerotools top` with a defect: the second reading raises. For a test of how it ends."""

from __future__ import annotations

import sys

from tests.cli.top.made_looks import a_look, job_of
from zerotools.cli.job_views.describe_job import Job
from zerotools.cli.top.reading.job_details import LogLines
from zerotools.cli.top.reading.read_screen_values import ScreenData
from zerotools.cli.top.screen.colour_theme import styles_of
from zerotools.cli.top.screen.top_app import Top
from zerotools.jobs.client.daemon_client import DaemonClient


class BrokenReads:
    """The log cannot be read, by a defect."""

    def read(self, chosen: int | None) -> ScreenData:
        """A machine."""
        return a_look(job_of(3))

    def log(self, job: Job, rank: int) -> LogLines:
        """Never."""
        raise ValueError("a defect of the reader")


if __name__ == "__main__":
    app = Top(BrokenReads(), DaemonClient(), 60.0, styles_of(None, colours=True))
    app.run()
    print(f"ended: {app.failure!r}")
    sys.exit(0 if app.failure is None else 70)
