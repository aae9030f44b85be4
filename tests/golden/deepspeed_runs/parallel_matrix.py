"""Runs with a second kind of parallelism, judged at 2, 4 and 6 ranks:
`python -m tests.golden.deepspeed_runs.parallel_matrix --out F`.

Those of AutoEP also with other expert-parallel ranks, and from universal checkpoints at each stage;
all that go on from one checkpoint must have the same losses.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from zerotools import __version__
from zerotools.formats.deepspeed.schema.ds_config import ZeroSettings

from .judge import LOSSES
from .judging import Move, differences

RANKS = (2, 4, 6)
EXPERT_RANKS = {2: 1, 4: 4}
"""AutoEP's, by the ranks of the run, beside the two that saved."""


def moves_at(ranks: int, names: Sequence[str]) -> Iterator[Move]:
    """All moves of the cases to a number of ranks."""
    for name in names:
        yield Move(name)
        if not name.startswith("autoep"):
            continue
        if ranks in EXPERT_RANKS:
            yield Move(name, expert_ranks=EXPERT_RANKS[ranks])
        if "muon" not in name:  # which DeepSpeed resumes from no universal checkpoint
            for stage in (1, 2, 3):
                yield Move(name, ZeroSettings(stage=stage), is_universal=True)


def losses_of(move: Move, directory: Path) -> list[float | None]:
    """The losses after the checkpoint was loaded. DeepSpeed's stage 3 counts several steps for one
    after a universal checkpoint with several groups, so that its second loss is another."""
    found: list[float | None] = json.loads((directory / str(move) / LOSSES).read_text())
    return found[:1] if move.is_universal and move.settings.stage == 3 else found


def main() -> None:
    """Exits 1 where something is not equal."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="JSON of the result")
    options = parser.parse_args()
    from .cases_parallel import PARALLEL  # imports torch, which only marked tests may

    names = [case.name for case in PARALLEL if case.stage and not case.universal]
    found: dict[str, list[str]] = {}
    first: dict[str, list[float | None]] = {}
    for ranks in RANKS:
        found[str(ranks)] = []
        for move in moves_at(ranks, names):  # a launch each: a process has one placement of experts
            with tempfile.TemporaryDirectory() as directory:
                unequal = differences([move], ranks, Path(directory), "judge_parallel")
                losses = losses_of(move, Path(directory))
            expected = first.setdefault(move.case, losses)[: len(losses)]
            if losses != expected:
                unequal.append(
                    f"{move} at {ranks} ranks: losses {losses}, and {expected} elsewhere"
                )
            print(f"{move} at {ranks} ranks: {len(unequal)} differences", flush=True)
            found[str(ranks)] += unequal
    result = {"zerotools": __version__, "deepspeed": "0.19.8", "cases": names, "differences": found}
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    raise SystemExit(any(found.values()))


if __name__ == "__main__":
    main()
