"""Seconds and bytes of the HTML reports, next to the same commands without `--html`.

    python -m benchmarks.reports [DIRECTORY]

A run of ZeRO-3 on 4 ranks with 271M parameters, the 16-bit model of it (0.6 GB), the same model
with another last bit in one of 50 elements, and a model of 10,000 tensors, all in DIRECTORY.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.measuring import Measurement, interleaved, machine, measure, zerotools
from benchmarks.runs import middle, wall
from benchmarks.zero_checkpoints import MODELS, Llama, generate

RUNS = 5
DEEP = Llama(layers=1111, hidden=64, intermediate=128, key_value=64, vocabulary=1000)
"""10,002 tensors."""


def make(work: Path) -> None:
    """Write `run`, `model`, `changed`, `deep-run` and `deep` into `work`."""
    for name, model, llama in (("run", "model", MODELS["271M"]), ("deep-run", "deep", DEEP)):
        generate(work / name, llama.shapes(), stage=3, ranks=4)
        subprocess.run(zerotools("consolidate", work / name, work / model), check=True)
    shutil.copytree(work / "model", work / "changed")
    for file in (work / "changed").glob("*.safetensors"):
        with file.open("rb") as opened:
            begin = 8 + int.from_bytes(opened.read(8), "little")
        np.memmap(file, "<u2", "r+", begin)[::50] ^= 1


def main() -> None:
    """Print the table."""
    with TemporaryDirectory(dir=next(iter(sys.argv[1:]), None)) as directory:
        work = Path(directory)
        make(work)
        run, model, changed, deep = (work / name for name in ("run", "model", "changed", "deep"))
        page = work / "page.html"
        commands: dict[str, tuple[Sequence[object], bool]] = {}
        for name, path in (("run", run), ("model", model), ("deep", deep)):
            commands[f"inspect {name}"] = ("inspect", path), False
            commands[f"inspect {name} --html"] = ("inspect", path), True
        commands["inspect model --html --stats"] = ("inspect", model, "--stats"), True
        commands["diff model changed --changes"] = ("diff", model, changed, "--changes"), False
        commands["diff model changed --html"] = ("diff", model, changed), True
        commands["verify model"] = ("verify", model), False
        commands["verify model --html"] = ("verify", model), True
        sizes = dict[str, int]()

        def once(name: str) -> Measurement:
            words, is_drawn = commands[name]
            drawn = ["--html", str(page)] if is_drawn else []
            shell = ["sh", "-c", '"$@"; test $? -le 1', "sh", *zerotools(*words), *drawn]
            found = measure(shell)  # diff ends with 1
            if is_drawn:
                sizes[name] = page.stat().st_size
            return found

        results = interleaved({name: lambda name=name: once(name) for name in commands}, runs=RUNS)
    print(f"{machine()}; median of {RUNS}\n\n| command | wall s (range) | CPU s | page |")
    print("|---|---|---|---|")
    for name, found in results.items():
        walls, size = sorted(map(wall, found)), sizes.get(name)
        spread = f"{walls[0]:.2f} to {walls[-1]:.2f}"
        processor = middle(found, lambda each: each.cpu_seconds)
        shown = "" if size is None else f"{size / 1000:,.0f} kB"
        print(f"| `{name}` | {middle(found, wall):.2f} ({spread}) | {processor:.2f} | {shown} |")


if __name__ == "__main__":
    main()
