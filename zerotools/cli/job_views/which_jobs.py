"""Whose jobs a command is about: those of a daemon, or those that Slurm has without one."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from zerotools.core.errors import BadRequest
from zerotools.jobs.client.daemon_client import DaemonClient

if TYPE_CHECKING:
    from zerotools.jobs.slurm.slurm_jobs import SlurmJobs

SLURM = "slurm:"
"""How the number of a job begins that Slurm has without a daemon."""


def jobs_client(
    socket: Path | None, references: Iterable[str | None] = ()
) -> DaemonClient | SlurmJobs:
    """The daemon, or Slurm where `references` name jobs of it; also where no daemon has ever
    listened here and there are such jobs. Raises BadRequest: they name both."""
    named = [each for each in references if each is not None]
    under_slurm = [each for each in named if each.startswith(SLURM)]
    if under_slurm and len(under_slurm) < len(named):
        other = next(each for each in named if not each.startswith(SLURM))
        raise BadRequest(
            f"{under_slurm[0]} is a job of Slurm and {other} one of the daemon; name them in two "
            "commands"
        )
    client = DaemonClient(socket)
    if under_slurm or (socket is None and not client.socket.exists() and has_slurm_jobs()):
        from zerotools.jobs.slurm.slurm_jobs import SlurmJobs  # most commands do without

        return SlurmJobs()
    return client


def has_slurm_jobs() -> bool:
    """Whether anything was submitted to Slurm from here."""
    from zerotools.jobs.slurm.job_directory import slurm_home

    try:
        return any(slurm_home().iterdir())
    except (OSError, BadRequest):
        return False
