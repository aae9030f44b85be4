"""The full matrix of continued training.

    python -m tests.golden.deepspeed_runs.continued_matrix --out F

Every case, from 1, 2, 3 and 4 ranks to each of the others, and some that go on with other ZeRO
settings too. Takes most of an hour on two cores.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from zerotools import __version__

from .continued import LAST, RESET, SAVED_AFTER, Course, Verdict, continue_all

RANKS = (2, 3, 1, 4)


def row(verdicts: Mapping[Course, Verdict]) -> dict[str, Any]:
    """What is kept of a case: greatest relative differences of a loss, rounded."""
    return {
        "drift": {f"{c.ranks}->{c.to}": float(f"{v.drift:.1e}") for c, v in verdicts.items()},
        "own_drift": max(v.own_drift or 0.0 for v in verdicts.values()),
        "weights_only": float(f"{min(v.weights_only or 0.0 for v in verdicts.values()):.1e}"),
        "compared_steps": min(v.compared for v in verdicts.values()),
        "tolerance": max(v.tolerance for v in verdicts.values()),
    }


def text_of(verdicts: Mapping[Course, Verdict]) -> str:
    """The result as JSON, one line per case."""
    rows = {
        name: row({c: v for c, v in verdicts.items() if str(c.move) == name})
        for name in dict.fromkeys(str(course.move) for course in verdicts)
    }
    head = {
        "zerotools": __version__,
        "deepspeed": "0.19.8",
        "saved_after": SAVED_AFTER,
        "last_step": LAST,
        "courses": len(verdicts),
        "differences": [line for verdict in verdicts.values() for line in verdict.differences],
    }
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(kept)}" for name, kept in rows.items())
    return json.dumps(head, indent=1).removesuffix("\n}") + f',\n "cases": {{\n{lines}\n }}\n}}\n'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, required=True, help="JSON, written after each rank count"
    )
    parser.add_argument("names", nargs="*", help="cases; all without")
    options = parser.parse_args()
    from .cases_continued import CONTINUED  # imports torch, which only marked tests may

    verdicts: dict[Course, Verdict] = {}
    for ranks in RANKS:
        names = options.names or list(CONTINUED)
        courses = [Course(n, ranks, to) for n in names for to in sorted(RANKS) if to != ranks]
        courses += [each for each in RESET if each.ranks == ranks and each.case in names]
        with tempfile.TemporaryDirectory() as directory:
            verdicts |= continue_all(courses, Path(directory))
        wrong = sum(bool(verdicts[course].differences) for course in courses)
        print(f"{len(courses)} courses from {ranks} ranks: {wrong} with differences", flush=True)
        options.out.write_text(text_of(verdicts))
    raise SystemExit(any(verdict.differences for verdict in verdicts.values()))


if __name__ == "__main__":
    main()
