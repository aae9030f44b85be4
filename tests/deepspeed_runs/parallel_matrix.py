"""Runs with a second kind of parallelism, judged at 2, 4 and 6 ranks:
`python -m tests.deepspeed_runs.parallel_matrix --out F`."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from zerotools import __version__

from .judging import Move, differences

RANKS = (2, 4, 6)


def main() -> None:
    """Exits 1 where something is not equal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="JSON of the result")
    options = parser.parse_args()
    from .cases_parallel import PARALLEL  # imports torch, which only marked tests may

    names = [case.name for case in PARALLEL if case.stage]
    found: dict[str, list[str]] = {}
    for ranks in RANKS:
        found[str(ranks)] = []
        for name in names:  # a launch each: a process has one placement of experts
            with tempfile.TemporaryDirectory() as directory:
                unequal = differences([Move(name)], ranks, Path(directory), "judge_parallel")
            print(f"{name} at {ranks} ranks: {len(unequal)} differences", flush=True)
            found[str(ranks)] += unequal
    result = {"zerotools": __version__, "deepspeed": "0.19.8", "cases": names, "differences": found}
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    raise SystemExit(any(found.values()))


if __name__ == "__main__":
    main()
