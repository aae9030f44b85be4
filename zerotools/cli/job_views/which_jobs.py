"""The jobs of a command: those of a daemon, or those that Slurm has without one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from zerotools.core.errors import BadRequest, DaemonUnreachable
from zerotools.jobs.client.daemon_client import DaemonClient
from zerotools.jobs.client.submissions import Submission
from zerotools.jobs.tables.spec import SLURM

if TYPE_CHECKING:
    from zerotools.jobs.slurm.slurm_jobs import SlurmJobs

PREFIX = "slurm:"
"""How the number of a job begins that Slurm has without a daemon."""


def jobs_client(
    socket: Path | None, references: Iterable[str | None] = ()
) -> DaemonClient | SlurmJobs:
    """Return the daemon, or Slurm if `references` name jobs of it; also Slurm if no daemon has ever
    listened here and it has jobs. Raises BadRequest: they name both."""
    named = [each for each in references if each is not None]
    under_slurm = [each for each in named if each.startswith(PREFIX)]
    if under_slurm and len(under_slurm) < len(named):
        other = next(each for each in named if not each.startswith(PREFIX))
        raise BadRequest(
            f"{under_slurm[0]} is a job of Slurm and {other} one of the daemon; name them in two "
            "commands"
        )
    client = DaemonClient(socket)
    if under_slurm or (socket is None and not client.socket.exists() and has_slurm_jobs()):
        from zerotools.jobs.slurm.slurm_jobs import SlurmJobs  # most commands do without

        return SlurmJobs()
    return client


def is_without_daemon(
    client: DaemonClient, jobs: Sequence[Submission], *, no_daemon: bool, dry_run: bool
) -> bool:
    """Return whether jobs go from here to Slurm: they are for it, and no daemon answers to watch
    them, or none is wanted. Raises BadRequest: none of them is, and --no-daemon was given."""
    if not any(each.spec.backend == SLURM for each in jobs):
        if no_daemon:
            raise BadRequest("--no-daemon is for jobs under Slurm; give --slurm, too")
        return False
    if no_daemon or dry_run or not client.socket.exists():
        return True
    try:
        client.health()
    except DaemonUnreachable:
        return True
    return False


def has_slurm_jobs() -> bool:
    """Return whether any job was submitted to Slurm from here."""
    from zerotools.jobs.slurm.job_directory import slurm_home

    try:
        return any(slurm_home().iterdir())
    except (OSError, BadRequest):
        return False
