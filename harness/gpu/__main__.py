"""python -m harness.gpu --out DIR [--budget 500] [--device cpu]"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from harness.gpu.rows import run_all, summary, write


def main(arguments: list[str] | None = None) -> int:
    """Returns 1 where a check failed."""
    parser = argparse.ArgumentParser(prog="python -m harness.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="the table, its rows, the log")
    parser.add_argument("--budget", type=float, default=500.0, help="seconds for all checks")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args(arguments)
    rows = []
    for row in run_all(options.device, options.budget, options.out):
        rows.append(row)
        print(row, flush=True)
        write(rows, options.out)  # also where the next one ends the machine
    print(*summary(rows), sep="\n")
    return int(any(row.state == "FAIL" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
