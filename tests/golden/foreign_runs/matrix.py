"""Every program's checkpoint, gone on from at every stage and at 1, 2 and 4 ranks:
`python -m tests.golden.foreign_runs.matrix --out FILE`.

Writes a table of the largest relative difference between the losses of a job and those of the
program that went on itself, over the four steps after the checkpoint.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from tests.daemon.trainer.several import Runs, run_all
from tests.daemon.trainer.test_foreign import CASES, TOLERANCE, continued, job_of, precision
from tests.golden.foreign_runs.setting import write_tokens

RANKS, STAGES = (1, 2, 4), range(4)
HEAD = """\
# Going on from checkpoints of other programs

<!-- Written by `python -m tests.golden.foreign_runs.matrix`, which scripts/judge runs. -->

A tiny Llama (`hf-trainer-experts`: a Mixtral) was trained three steps by each program, saved, and
trained four more by the program itself and by a job with `resume_from`. The numbers are the largest
relative difference of these four losses, the worst of 1, 2 and 4 ranks, at each stage of engine
torch. Tolerance: {fp32:g} in fp32, {bf16:g} in bf16, where the programs round at other places.

| checkpoint | program | stage 0 | stage 1 | stage 2 | stage 3 |
|---|---|---|---|---|---|
"""


def difference(runs: Runs, name: str, case: str) -> float:
    """The largest of the steps."""
    pairs = zip(runs.losses(name), continued(case)["losses"], strict=True)
    return max(abs(found - expected) / expected for found, expected in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    worst: dict[tuple[str, int], float] = {}
    for ranks in RANKS:
        with tempfile.TemporaryDirectory() as directory:
            place = Path(directory)
            write_tokens(place / "tokens.bin")
            jobs = {
                f"{case}-{stage}": job_of(case, place / "tokens.bin", zero={"stage": stage})
                for case in CASES
                for stage in STAGES
            }
            runs = run_all(place, place / "tokens.bin", ranks, jobs)
            for case in CASES:
                for stage in STAGES:
                    found = difference(runs, f"{case}-{stage}", case)
                    worst[case, stage] = max(worst.get((case, stage), 0.0), found)
    text = HEAD.format(**TOLERANCE)
    for case in CASES:
        cells = " | ".join(f"{worst[case, stage]:.1e}" for stage in STAGES)
        text += f"| `{case}` | {continued(case)['about']} | {cells} |\n"
    options.out.write_text(text)
    over = [case for (case, _), found in worst.items() if found > TOLERANCE[precision(case)]]
    if over:
        raise SystemExit(f"over the tolerance: {', '.join(dict.fromkeys(over))}")


if __name__ == "__main__":
    main()
