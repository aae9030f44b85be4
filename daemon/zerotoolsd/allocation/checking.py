"""What a daemon looks at before it takes a job, for one that goes to Slurm without a daemon.

`python -m zerotoolsd.allocation.checking < spec.json` where the job is submitted: its files must be
seen there, as they are on the nodes. The exit status is 0, or that of the error, whose sentence
goes to standard error.
"""

from __future__ import annotations

import json
import sys

from zerotools.core.errors import BadRequest, ZerotoolsError
from zerotools.jobs.jobfile.stored import read_stored
from zerotoolsd.admission import preflight


def main() -> int:
    """Look at the job on standard input."""
    stored = read_stored(json.load(sys.stdin))
    try:
        if stored.spec is None or stored.problems:
            raise BadRequest("; ".join(stored.problems))
        preflight.check_files(stored.spec)
        preflight.check_output(stored.spec)
    except ZerotoolsError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
