"""Starts the process that watches a job under Slurm, with the daemon's package imported from next
to this file.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    DAEMON = Path(__file__).resolve().parents[2]
    installed = (DAEMON.parent / "zerotools" / "__init__.py").is_file()
    sys.path[:0] = [str(DAEMON.parent), *([] if installed else [str(DAEMON.parents[1])])]
    from zerotoolsd.slurm.watcher.submit_and_watch import main

    sys.exit(main())
