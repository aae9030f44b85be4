"""Copy the checkpoint argv[1] to a store: a process that a server may kill at any request."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.ops.mirroring.made import BUDGET, place
from zerotools.ops.mirroring.send_copy import send_copy

if __name__ == "__main__":
    path = Path(sys.argv[1])
    send_copy(path, place() / path.name, budget=BUDGET)
