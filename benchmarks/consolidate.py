"""`zerotools inspect` and `consolidate` against DeepSpeed's script and against the floor.

    python -m benchmarks.consolidate 271M [--deepspeed-python PYTHON] [--runs 5]
    python -m benchmarks.consolidate 2B --runs 3
    python -m benchmarks.consolidate 70B

271M: 4 ranks of ZeRO-3, 3.2 GB, warm cache, whole processes. 2B: 4 ranks, 24 GB, cold cache, the
copy phase. 70B: 1,024 ranks, sparse files, metadata only. Each prints its table in Markdown.
DeepSpeed's script does not flush its output and ours does: both are measured with and without.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks.measuring import (
    Measurement,
    interleaved,
    machine,
    measure,
    sized_benchmark,
    zerotools,
)
from benchmarks.runs import MIB, UNFLUSHED, Commands, Runs, checkpoint, fresh, middle, wall

# DeepSpeed's script, then every file that it wrote is flushed.
FLUSHED = """
import os, runpy, sys
out = sys.argv[3]
runpy.run_path(sys.argv.pop(1), run_name="__main__")
for name in os.listdir(out):
    os.fsync(os.open(os.path.join(out, name), os.O_RDONLY))
"""
FLUSHED_HEAD = "import os, runpy, sys; sys.path.insert(0, os.path.dirname(sys.argv[1]))"
PLAN = """
import sys
from pathlib import Path
from zerotools.ops.conversions.consolidate import Options, prepare_export
from zerotools.ops.execution.plan_copies import plan
made = prepare_export(Path(sys.argv[1]), Path(sys.argv[2]), Options())
print(sum(len(copy.pieces) for copy in plan(made.source, made.target.checkpoint)))
"""


def copy_seconds(result: Measurement) -> float:
    """What zerotools (JSON) or the floor (a number) says that moving the data took."""
    try:
        return float(json.loads(result.output)["seconds"])
    except (ValueError, TypeError):
        return float(result.output)


def table(results: Runs, *, phase: bool) -> None:
    copies = " copy phase s |" if phase else ""
    print(f"| | wall s (range) | CPU s |{copies} peak RSS MiB | peak anonymous MiB |")
    print("|---|---|---|---|---|" + ("---|" if phase else ""))
    for name, runs in results.items():
        walls = sorted(map(wall, runs))
        cells = [name, f"{median(walls):.2f} ({walls[0]:.2f} to {walls[-1]:.2f})"]
        cells.append(f"{middle(runs, lambda r: r.cpu_seconds):.2f}")
        if phase:
            cells.append("" if "DeepSpeed" in name else f"{middle(runs, copy_seconds):.2f}")
        cells.append(f"{middle(runs, lambda r: r.peak_rss_bytes) / MIB:.0f}")
        cells.append(f"{middle(runs, lambda r: r.peak_anonymous_bytes) / MIB:.0f}")
        print("| " + " | ".join(cells) + " |")
    print()


def ours(source: Path, out: Path, *options: str, flush: bool = True) -> list[str]:
    arguments = ["consolidate", str(source), str(out), "--json", *options]
    return zerotools(*arguments) if flush else [sys.executable, "-c", UNFLUSHED, *arguments]


def theirs(python: str, script: Path, source: Path, out: Path, dtype: str) -> dict[bool, list[str]]:
    """DeepSpeed's command by whether its output is flushed."""
    arguments = [str(source), str(out), "--safe_serialization", "--dtype", dtype]
    flushed = [python, "-c", FLUSHED_HEAD + FLUSHED, str(script), *arguments]
    return {False: [python, str(script), *arguments], True: flushed}


def floor(source: Path, out: Path, dtype: str, *, flush: bool) -> list[str]:
    command = [sys.executable, "-m", "benchmarks.floor", str(source), str(out), "--dtype", dtype]
    return [*command, "--fsync"] if flush else command


def copied_script(python: str, work: Path) -> Path:
    """DeepSpeed's own scripts as it puts them beside each checkpoint."""
    where = "import importlib.util as u; print(u.find_spec('deepspeed').origin)"
    found = subprocess.run([python, "-c", where], capture_output=True, text=True, check=True)
    for name in ("zero_to_torch.py", "zero_to_fp32.py"):
        shutil.copy(Path(found.stdout.strip()).parent / "utils" / name, work)
    return work / "zero_to_torch.py"


def small(work: Path, runs: int, python: str) -> None:
    """271M: whole processes, warm cache."""
    script, out = copied_script(python, work), work / "out"
    with checkpoint(work, "--model", "271M", "--ranks", "4") as source:
        once = partial(measure, zerotools("inspect", source), sampling=True)
        table(interleaved({"zerotools inspect": once}, runs=runs), phase=False)
        for dtype in ("bf16", "fp16"):
            commands: Commands = {}
            for flush in (False, True):
                how = f"{dtype}, {'flushed' if flush else 'not flushed'}"
                deepspeed = theirs(python, script, source, out, dtype)[flush]
                mine = ours(source, out, "--dtype", dtype, flush=flush)
                commands[f"zerotools, {how}"] = partial(fresh, out, mine)
                commands[f"DeepSpeed's script, {how}"] = partial(fresh, out, deepspeed)
                least = floor(source, out, dtype, flush=flush)
                commands[f"floor, {how}"] = partial(fresh, out, least)
            results = interleaved(commands, runs=runs)
            table(results, phase=True)
            for how in (f"{dtype}, not flushed", f"{dtype}, flushed"):
                compare(results, how)


def compare(results: Runs, how: str) -> None:
    mine, other = results[f"zerotools, {how}"], results[f"DeepSpeed's script, {how}"]
    faster = middle(other, wall) / middle(mine, wall)
    smaller = middle(other, lambda r: r.peak_rss_bytes) / middle(mine, lambda r: r.peak_rss_bytes)
    above = middle(mine, copy_seconds) / middle(results[f"floor, {how}"], copy_seconds)
    print(
        f"{how}: {faster:.1f} times faster than DeepSpeed's script with {smaller:.0f} times less "
        f"memory; copy phase {above:.2f} times the floor\n"
    )


def large(work: Path, runs: int) -> None:
    """2B: the copy phase, cold cache. Its embeddings have 262 MB, more than the smaller budget."""
    out = work / "out"
    with checkpoint(work, "--model", "2B", "--ranks", "4") as source:
        commands: Commands = {}
        for flush in (False, True):
            how = "flushed" if flush else "not flushed"
            lean = ours(source, out, "--max-memory", "128MiB", flush=flush)
            commands |= {
                f"zerotools, {how}": partial(fresh, out, ours(source, out, flush=flush), source),
                f"zerotools --max-memory 128MiB, {how}": partial(fresh, out, lean, source),
                f"floor, {how}": partial(
                    fresh, out, floor(source, out, "bf16", flush=flush), source
                ),
            }
        results = interleaved(commands, runs=runs)
    table(results, phase=True)
    for how in ("not flushed", "flushed"):
        least = middle(results[f"floor, {how}"], copy_seconds)
        mine = middle(results[f"zerotools, {how}"], copy_seconds)
        print(f"{how}: copy phase {mine / least:.2f} times the floor\n")


def metadata(work: Path, runs: int) -> None:
    """70B over 1,024 ranks: metadata only."""
    with checkpoint(work, "--model", "70B", "--ranks", "1024", "--sparse") as source:
        commands = {
            "inspect": zerotools("inspect", source),
            "consolidate --dry-run": zerotools("consolidate", source, work / "out", "--dry-run"),
            "every copy planned": [sys.executable, "-c", PLAN, str(source), str(work / "out")],
        }
        watched: Commands = {
            name: partial(measure, command, sampling=True) for name, command in commands.items()
        }
        table(interleaved(watched, runs=runs), phase=False)


def main() -> None:
    with sized_benchmark(__doc__, ("271M", "2B", "70B"), runs=5) as asked:
        print(f"{asked.size}: {machine()}; medians of {asked.runs}, interleaved\n")
        if asked.size == "271M":
            small(asked.work, asked.runs, asked.deepspeed_python)
        elif asked.size == "2B":
            large(asked.work, asked.runs)
        else:
            metadata(asked.work, asked.runs)


if __name__ == "__main__":
    main()
