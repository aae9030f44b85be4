"""Plan conversions of a checkpoint of many ranks in parts: seconds and memory of one part.

    python -m benchmarks.plan_scale [--model 405B] [--ranks 16384] [--parts 64 512] [--work DIR]

A ZeRO-3 checkpoint of DeepSpeed, complete in its metadata: two files for each rank, with holes in
place of the numbers. All ranks have the same metadata, so their files are one file under as many
names. In a process of its own, each part reads all of it, lays the output out, and proves its
copies: everything but moving bytes. The processor time of opening so many files is in it, their
latency on a network file system is not.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measuring import machine
from benchmarks.zero_checkpoints import MODELS, Llama, generate
from zerotools.ops.conversions import consolidate, reshard
from zerotools.ops.conversions.consolidate import Options
from zerotools.ops.conversions.conversion import Conversion
from zerotools.ops.conversions.in_parts import prove_part
from zerotools.ops.execution.parts.share import OutputPart

LARGER = {**MODELS, "405B": Llama(126, 16384, 53248, 1024, 128256)}
"""Llama 3.1 405B: arXiv 2407.21783, table 3."""
TAG = "global_step100"


def main() -> None:
    """Print a line for each command and number of parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="405B", choices=LARGER)
    parser.add_argument("--ranks", type=int, default=16384)
    parser.add_argument("--parts", type=int, nargs="*", default=[64, 512])
    parser.add_argument("--work", type=Path)
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one is not None:
        print(json.dumps(_one(*asked.one)))
        return
    print(machine())
    with TemporaryDirectory(dir=asked.work) as directory:
        source = Path(directory) / "run"
        _make(source, LARGER[asked.model], asked.ranks)
        for command in ("consolidate", "reshard"):
            for of in asked.parts:
                for index in dict.fromkeys((1, of // 2, of)):
                    words = ("--one", str(source), command, f"{index}/{of}", str(asked.ranks // 2))
                    done = subprocess.run(
                        [sys.executable, "-m", "benchmarks.plan_scale", *words],
                        capture_output=True,
                        text=True,
                        check=True,
                    )
                    told = json.loads(done.stdout)
                    print(f"{command}, part {index} of {of}: {_said(told)}", flush=True)


def _said(told: dict[str, float]) -> str:
    return (
        f"{told['read']:.1f} s to read and lay out, {told['prove']:.1f} s to prove, "
        f"{told['memory'] / 2**20:,.0f} MiB; {told['bytes'] / 1e9:,.1f} GB in "
        f"{told['files']:,} files, {told['copies']:,} copies"
    )


def _make(out: Path, model: Llama, ranks: int) -> None:
    """The files of rank 0, under the names of all."""
    began = time.monotonic()
    one = out.with_name("one")
    # Rank 0 of a world of `ranks`, alone: no file names another rank.
    generate(one, model.shapes(), stage=3, ranks=ranks, sparse=True, written=1)
    (out / TAG).mkdir(parents=True)
    (out / "latest").write_text(TAG)
    for file in (one / TAG).iterdir():
        for rank in range(ranks):
            name = file.name.replace("pp_rank_0_", f"pp_rank_{rank}_")
            os.link(file, out / TAG / name)
    size = sum(parameter_count(shape) for shape in model.shapes().values())
    print(
        f"{size / 1e9:.0f} billion parameters on {ranks:,} ranks, {2 * ranks:,} files, made in "
        f"{time.monotonic() - began:.0f} s",
        flush=True,
    )


def parameter_count(shape: tuple[int, ...]) -> int:
    """Elements of a tensor."""
    count = 1
    for each in shape:
        count *= each
    return count


def _one(source: str, command: str, part: str, ranks: str) -> dict[str, float]:
    index, of = map(int, part.split("/"))
    began = time.monotonic()
    found = (
        consolidate.prepare(Path(source), Path(source).with_name("out"), Options())
        if command == "consolidate"
        else reshard.prepare(Path(source), Path(source).with_name("out"), world_size=int(ranks))
    )
    assert isinstance(found, Conversion)
    # That ranks hold the same numbers, which are none, is no matter here.
    conversion = replace(found, source=replace(found.source, problems=()))
    read = time.monotonic()
    copies, planned = prove_part(conversion, OutputPart(index, of))
    proved = time.monotonic()
    return {
        "read": read - began,
        "prove": proved - read,
        "memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "bytes": planned.nbytes,
        "files": len(planned.share),
        "copies": copies,
    }


if __name__ == "__main__":
    main()
