"""Starts the supervisor process: finds its own package without help from the environment."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from zerotoolsd.supervisor.main import main

    sys.exit(main(sys.argv[1:]))
