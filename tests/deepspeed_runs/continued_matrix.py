"""The full matrix of continued training: `python -m tests.deepspeed_runs.continued_matrix --out F`.

Every case, from 1, 2, 3 and 4 ranks to each of the others. Takes most of an hour on two cores.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zerotools import __version__

from .continued import LAST, SAVED_AFTER, TOLERANCE, Course, Verdict, continue_all

RANKS = (1, 2, 3, 4)


def row(verdicts: Mapping[Course, Verdict]) -> dict[str, Any]:
    """What is kept of a case: greatest relative differences of a loss, rounded."""
    return {
        "drift": {f"{c.ranks}->{c.to}": float(f"{v.drift:.1e}") for c, v in verdicts.items()},
        "own_drift": max(v.own_drift for v in verdicts.values()),
        "weights_only": float(f"{min(v.weights_only for v in verdicts.values()):.1e}"),
        "compared_steps": min(v.compared for v in verdicts.values()),
        "tolerance": max(v.tolerance for v in verdicts.values()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="JSON of the result")
    parser.add_argument("names", nargs="*", help="cases; all without")
    options = parser.parse_args()
    from .cases_continued import CONTINUED  # imports torch, which only marked tests may

    names = options.names or list(CONTINUED)
    verdicts: dict[Course, Verdict] = {}
    for ranks in RANKS:
        courses = [Course(n, ranks, to) for n in names for to in RANKS if to != ranks]
        with tempfile.TemporaryDirectory() as directory:
            verdicts |= continue_all(courses, Path(directory))
        wrong = sum(bool(verdicts[course].differences) for course in courses)
        print(f"{len(courses)} courses from {ranks} ranks: {wrong} with differences", flush=True)
    differences = [line for verdict in verdicts.values() for line in verdict.differences]
    rows = {n: row({c: v for c, v in verdicts.items() if c.case == n}) for n in names}
    head = {
        "zerotools": __version__,
        "deepspeed": "0.19.8",
        "saved_after": SAVED_AFTER,
        "last_step": LAST,
        "tolerance": dict(TOLERANCE),
        "differences": differences,
    }
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(kept)}" for name, kept in rows.items())
    text = json.dumps(head, indent=1).removesuffix("\n}")
    options.out.write_text(f'{text},\n "cases": {{\n{lines}\n }}\n}}\n')
    raise SystemExit(bool(differences))


if __name__ == "__main__":
    main()
