"""`zerotools salvage` of a large checkpoint against copying its bytes.

    python -m benchmarks.verification.salvage_speed [--model 271M] [--runs 3] [--work DIRECTORY]

271M: 4 ranks of ZeRO-3, 3.2 GB, warm cache. Of one rank's optimizer state, a bit in the middle is
flipped, and the file of another is cut to a third: salvage must find both, and leave weights out.
Then with the sound checkpoint to fill from. The copy is flushed to the disk, as salvage's output
is.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.measuring import HEADER, Measurement, interleaved, machine, row, work_directory
from benchmarks.runs import MIB, Commands, checkpoint, fresh, peak_anonymous

# `zerotools`, whose exit status must be the first argument.
EXPECTING = """
import sys
from zerotools.cli.main import main
expected = int(sys.argv.pop(1))
try:
    main()
except SystemExit as leaving:
    sys.exit(leaving.code != expected)
"""


def damaged(sound: Path, path: Path) -> Path:
    """A copy of `sound` with a flipped bit in the state of rank 1, and that of rank 2 cut short."""
    shutil.copytree(sound, path)
    flipped, cut = sorted(path.rglob("*optim_states.pt"))[1:3]
    with flipped.open("r+b") as file:
        file.seek(flipped.stat().st_size // 2)
        (byte,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 4]))
    os.truncate(cut, cut.stat().st_size // 3)
    return path


def salvage(path: Path, out: Path, expected: int, *more: str) -> Measurement:
    command = [sys.executable, "-c", EXPECTING, str(expected), "salvage", str(path), str(out)]
    return fresh(out, [*command, *more])


def copy(path: Path, out: Path) -> Measurement:
    return fresh(out, ["sh", "-c", f'cp -r "{path}" "{out}" && sync -f "{out}"'])


def show(sound: Path, work: Path, runs: int) -> None:
    path, out = damaged(sound, work / "damaged"), work / "out"
    commands: Commands = {
        "copying it": partial(copy, path, work / "copied"),
        "salvage": partial(salvage, path, out, 1),
        "salvage --fill-from": partial(salvage, path, out, 0, "--fill-from", str(sound)),
    }
    results = interleaved(commands, runs=runs)
    size = sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
    print(f"{size / 1e9:.2f} GB\n\n{HEADER}")
    for name, found in results.items():
        print(row(name, found))
    print()
    for name in [name for name in results if name.startswith("salvage")]:
        pairs = zip(results[name], results["copying it"], strict=True)
        ratio = median(a.wall_seconds / b.wall_seconds for a, b in pairs)
        peak = max(map(peak_anonymous, results[name])) / MIB
        print(f"{name}: {ratio:.2f} times copying, peak anonymous memory {peak:.0f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--model", default="271M")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--work", type=work_directory, help="where to put the checkpoint")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=asked.work) as temporary:
        print(f"{asked.model}: {machine()}; medians of {asked.runs}, interleaved\n")
        options = ("--model", asked.model, "--ranks", "4", "--stage", "3")
        with checkpoint(Path(temporary), *options) as source:
            show(source, Path(temporary), asked.runs)


if __name__ == "__main__":
    main()
