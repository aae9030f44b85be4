"""Starts a fork server: `python -P entry.py MODULE...`, under the interpreter of the jobs."""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    trainer = Path(__file__).resolve().parents[2] / "trainer" / "entry.py"
    runpy.run_path(str(trainer))["make_importable"]()
    from zerotoolsd.supervisor.preloaded.fork_attempts import main

    status = main(sys.argv[1:])
    sys.stdout.flush()
    # No shutdown of the interpreter, because imported modules may block there.
    os._exit(status)
