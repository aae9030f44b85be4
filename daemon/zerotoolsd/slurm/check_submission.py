"""Checks a job that goes to Slurm without a daemon, as a daemon would check it.

`python -m zerotoolsd.slurm.check_submission < spec.json` runs on the submitting machine, which must
have the same files as the nodes. The exit status is 0, or the exit status of the error, which is
printed to standard error.
"""

from __future__ import annotations

import json
import sys

from zerotools.core.errors import BadRequest, ZerotoolsError
from zerotools.jobs.jobfile.stored_job import read_stored
from zerotoolsd.service.admission import preflight_files


def main() -> int:
    """Check the job file on the standard input. Return the exit status: 0 if it is accepted."""
    stored = read_stored(json.load(sys.stdin))
    try:
        if stored.spec is None or stored.problems:
            raise BadRequest("; ".join(stored.problems))
        preflight_files.check_files(stored.spec)
        preflight_files.check_output(stored.spec)
    except ZerotoolsError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
