"""The start of the probe process. It finds its package without environment variables."""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
    from zerotools.sensors.nvml_probe.read_gpu import main

    main()
