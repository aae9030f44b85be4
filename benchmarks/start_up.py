"""How long `zerotools --help` and `zerotools inspect` take, for one or more checkouts of zerotools.

    python -m benchmarks.start_up [TREE...] [--runs 40]

The first line of each command is Python doing nothing, which nobody can save. The least time is
that of a quiet moment at full clock, and the one that repeats from run to run.
"""

from __future__ import annotations

import argparse
import compileall
import sys
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.measuring import ROOT, Measurement, interleaved, machine, measure

CHECKPOINT = ROOT / "tests" / "golden" / "deepspeed-0.19.8" / "z3-bf16-w2" / "checkpoint"
COMMANDS = {"--help": ["--help"], "inspect": ["inspect", str(CHECKPOINT)]}
PROGRAM = (
    "import sys; tree, *sys.argv[1:] = sys.argv[1:]; sys.path[:0] = [tree, tree + '/daemon']; "
    "from zerotools.cli.main import main; sys.exit(main())"
)


def once(tree: Path, arguments: list[str]) -> Measurement:
    """One run of the command line of the checkout at `tree`."""
    return measure([sys.executable, "-c", PROGRAM, str(tree), *arguments])


def line(name: str, results: list[Measurement]) -> str:
    """A table row: least and median wall time, least processor time, peak memory."""
    walls = [result.wall_seconds for result in results]
    return (
        f"| {name} | {min(walls):.3f} | {median(walls):.3f} "
        f"| {min(result.cpu_seconds for result in results):.3f} "
        f"| {median(result.peak_rss_bytes for result in results) / 2**20:.1f} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trees", nargs="*", type=Path, default=[ROOT], metavar="TREE")
    parser.add_argument("--runs", type=int, default=40)
    options = parser.parse_args()
    trees = [tree.resolve() for tree in options.trees]
    for tree in trees:
        compileall.compile_dir(tree / "zerotools", quiet=1)
    commands = {"`python -c pass`": partial(measure, [sys.executable, "-c", "pass"])}
    for command, arguments in COMMANDS.items():
        for number, tree in enumerate(trees, 1):
            commands[f"`{command}`, tree {number}"] = partial(once, tree, arguments)
    results = interleaved(commands, runs=options.runs)
    print(f"{machine()}; {options.runs} runs in turn\n")
    print("| command | least wall s | median wall s | least CPU s | peak RSS MiB |")
    print("|---|---|---|---|---|")
    for name, measurements in results.items():
        print(line(name, measurements))


if __name__ == "__main__":
    main()
