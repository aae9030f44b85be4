"""Starts the supervisor process. This script finds its own package without any environment
variable.
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from zerotoolsd.supervisor.main import main

    sys.exit(main(sys.argv[1:]))
