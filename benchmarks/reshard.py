"""`zerotools reshard` and `convert` against copying the same bytes, and against their floor.

    python -m benchmarks.reshard 271M [--runs 3]
    python -m benchmarks.reshard small-files
    python -m benchmarks.reshard 2B --runs 1

271M: ZeRO-3 and ZeRO-2 of 4 ranks, 3.2 GB of optimizer state, warm cache. small-files: 579 tensors
of 238M parameters, ZeRO-3 over 64 ranks, 128 files. 2B: ZeRO-3 of 4 ranks, 24 GB, which do not fit
in the cache. The floor is `benchmarks/move_floor.py`.

Whole processes, each in turn; a ratio is the median of those within one round. "Flushed": every
output file is flushed to the disk before the process ends, as zerotools always does; `cp -r` is
followed by a `sync` of each file. The other rows flush nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.measuring import Measurement, interleaved, machine, sized_benchmark, zerotools
from benchmarks.runs import (
    MIB,
    UNFLUSHED,
    Commands,
    Runs,
    checkpoint,
    fresh,
    middle,
    peak_anonymous,
    wall,
)

COPY = 'cp -r --reflink=never "$1" "$2"'
FLUSH = ' && find "$2" -type f -exec sync {} +'
ROUNDING = 64 * MIB
MAX_TOUCHED = 8 * 1024 * MIB
MEDIUM = ("--model", "271M", "--ranks", "4")


def copied(source: Path, out: Path, *, flush: bool) -> list[str]:
    return ["sh", "-c", COPY + FLUSH * flush, "sh", str(source), str(out)]


def ours(arguments: Sequence[str], *, flush: bool) -> list[str]:
    return zerotools(*arguments) if flush else [sys.executable, "-c", UNFLUSHED, *arguments]


def size_of(path: Path) -> int:
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


def how(flush: bool) -> str:
    return "flushed" if flush else "not flushed"


def against_copy(
    cases: dict[str, list[str]], reference: Path, out: Path, *, ways: Sequence[bool] = (True, False)
) -> Commands:
    """Each case and a copy of `reference`, flushed and not."""
    run = runner(out, reference)
    commands: Commands = {}
    for flush in ways:
        commands[f"cp -r, {how(flush)}"] = run(copied(reference, out, flush=flush))
        for name, arguments in cases.items():
            commands[f"{name}, {how(flush)}"] = run(ours(arguments, flush=flush))
    return commands


def runner(out: Path, source: Path) -> Callable[[list[str]], Callable[[], Measurement]]:
    """Runs that write about as much as `source` has."""
    touched = size_of(source) + ROUNDING if size_of(source) < MAX_TOUCHED else 0
    return lambda command: partial(fresh, out, command, None, touched)


def table(results: Runs) -> None:
    print("| | wall s (range) | CPU s | times cp -r | peak anonymous MiB |\n|---|---|---|---|---|")
    for name, runs in results.items():
        walls = sorted(map(wall, runs))
        copies = results.get(f"cp -r, {how(not name.endswith('not flushed'))}")
        print(
            f"| {name} | {median(walls):.2f} ({walls[0]:.2f} to {walls[-1]:.2f}) "
            f"| {middle(runs, lambda r: r.cpu_seconds):.2f} "
            f"| {f'{ratio(runs, copies):.2f}' if copies else ''} "
            f"| {middle(runs, peak_anonymous) / MIB:.0f} |"
        )
    print()


def ratio(runs: Sequence[Measurement], others: Sequence[Measurement]) -> float:
    return median(wall(a) / wall(b) for a, b in zip(runs, others, strict=True))


def medium(work: Path, runs: int) -> None:
    """271M: another world size, another stage, another format."""
    out = work / "out"
    with (
        checkpoint(work, *MEDIUM, "--stage", "3", name="zero3") as sliced,
        checkpoint(work, *MEDIUM, "--stage", "2", name="zero2") as flat,
    ):
        wider = ["reshard", str(sliced), str(out), "--world-size", "8"]
        cases = {
            "ZeRO-3, 4 to 8 ranks": wider,
            "ZeRO-2 to ZeRO-3": [
                *("reshard", str(flat), str(out), "--world-size", "4", "--stage", "3")
            ],
            "ZeRO-3 to DCP": [
                *("convert", str(sliced), str(out), "--to", "dcp", "--world-size", "4")
            ],
        }
        commands = against_copy(cases, sliced, out)
        floor = [sys.executable, "-m", "benchmarks.move_floor", str(sliced), str(out)]
        commands["floor, 4 to 8 files, flushed"] = runner(out, sliced)(floor)
        table(interleaved(commands, runs=runs))


def small_files(work: Path, runs: int) -> None:
    """64 ranks to 48."""
    out = work / "out"
    with checkpoint(work, "--model", "deep", "--ranks", "64") as source:
        case = ["reshard", str(source), str(out), "--world-size", "48"]
        commands = against_copy({"ZeRO-3, 64 to 48 ranks": case}, source, out)
        table(interleaved(commands, runs=runs))


def large(work: Path, runs: int) -> None:
    """24 GB: nothing of it is cached when it is read, so there is nothing to warm up."""
    out = work / "out"
    with checkpoint(work, "--model", "2B", "--ranks", "4") as source:
        case = ["reshard", str(source), str(out), "--world-size", "8"]
        commands = against_copy({"ZeRO-3, 4 to 8 ranks": case}, source, out, ways=(True,))
        table(interleaved(commands, runs=runs, warm=False))


def main() -> None:
    sizes = ("271M", "small-files", "2B")
    with sized_benchmark(__doc__, sizes, runs=3) as asked:
        print(f"{asked.size}: {machine()}; {asked.runs} rounds\n")
        if asked.size == "271M":
            medium(asked.work, asked.runs)
        elif asked.size == "small-files":
            small_files(asked.work, asked.runs)
        else:
            large(asked.work, asked.runs)


if __name__ == "__main__":
    main()
