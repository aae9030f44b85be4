"""Runs a job in a batch script: `python -m zerotoolsd.slurm.runner.batch JOB_DIRECTORY
SUBMISSION`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from zerotools.core.errors import ZerotoolsError
from zerotools.jobs.slurm.job_directory import JobDirectory
from zerotools.jobs.slurm.slurm_commands import SlurmCommands
from zerotoolsd.slurm.runner.run_attempts import AttemptRunner, allocation_of

if __name__ == "__main__":
    commands = SlurmCommands()
    directory = JobDirectory(Path(sys.argv[1]))
    try:
        found = allocation_of(commands, os.environ)
        sys.exit(AttemptRunner(directory, int(sys.argv[2]), found, commands).run())
    except ZerotoolsError as error:
        print(f"zerotools: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
