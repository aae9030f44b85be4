"""python -m harness.gpu --out DIR [--budget 500] [--device cpu] [--wheels DIR] [--only NAME ...]"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

from harness.gpu.table import AGAIN, LOG, Row, installed, summary, write


def main(arguments: list[str] | None = None) -> int:
    """Run the checks. Return 1 if a check failed, or if the budget was too small for a check."""
    parser = argparse.ArgumentParser(prog="python -m harness.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="directory for the results")
    parser.add_argument("--budget", type=float, default=500.0, help="seconds for all checks")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--wheels", type=Path, help="a directory with wheels to install first")
    parser.add_argument(
        "--only", nargs="+", metavar="NAME", help="run only these checks, in this order"
    )
    options = parser.parse_args(arguments)
    (options.out / LOG).unlink(missing_ok=True)
    rows = []
    for row in _rows(parser, options):
        rows.append(row)
        print(row, flush=True)
        write(rows, options.out)  # also where the next one ends the machine
    print(*summary(rows), sep="\n")
    return int(any(row.state in AGAIN for row in rows))


def _rows(parser: argparse.ArgumentParser, options: argparse.Namespace) -> Iterator[Row]:
    options.out.mkdir(parents=True, exist_ok=True)
    if options.wheels is not None:
        yield installed(options.wheels, options.out)
        importlib.invalidate_caches()
    try:
        from harness.gpu.looks import CHECKS
        from harness.gpu.rows import in_order, run_all
    except ModuleNotFoundError as error:  # one that zerotools itself needs
        yield Row("packages", "packages that every check needs", str(error), "FAIL", 0.0)
        return
    if unknown := set(options.only or ()) - CHECKS.keys():
        parser.error(f"--only: no check {min(unknown)!r}; there are {', '.join(CHECKS)}")
    named = options.only or ()
    checks = {name: CHECKS[name] for name in named} if named else in_order(CHECKS)
    yield from run_all(options.device, options.budget, options.out, checks)


if __name__ == "__main__":
    sys.exit(main())
