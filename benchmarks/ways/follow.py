"""How many source files four things go through, and how often they return to one of them.

    python -m benchmarks.ways [TREE...] [--files]

TREE is a checkout (`git worktree add /tmp/before REVISION`), by default this one; each is a column.

- A file is entered when one of its functions is called, but for what importing a module calls.
- A return is a call from another file into a file that was entered before; calls of the same
  function by the same function count once.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measuring import ROOT
from harness.launching import TINY_LLAMA, start

TRACE = Path(__file__).with_name("trace.py")
GOLDEN = ROOT / "tests/golden/deepspeed-0.19.8"
KEY = "pin_memory"


@dataclass(frozen=True)
class Way:
    """What was counted; `returns` is None where nothing is run."""

    files: list[str]
    returns: int | None

    def __str__(self) -> str:
        return f"{len(self.files)} / {'-' if self.returns is None else self.returns}"


def traced(out: Path) -> Way:
    """What `trace` wrote."""
    told = json.loads(out.read_text())
    return Way(told["files"], told["returns"])


def command(tree: Path, *arguments: object) -> Way:
    """The way of a command that must succeed."""
    with tempfile.TemporaryDirectory() as temporary:
        out = Path(temporary) / "way.json"
        words = json.dumps([*map(str, arguments), f"{temporary}/out"])
        ways = {"WAYS_TREE": str(tree), "WAYS_OUT": str(out), "WAYS_ARGUMENTS": words}
        done = subprocess.run(
            [sys.executable, "-P", TRACE],
            env={**os.environ, **ways},
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(f"{words}: {done.stderr[-2000:]}")
        return traced(out)


def consolidate(tree: Path) -> Way:
    return command(tree, "consolidate", GOLDEN / "z3-bf16-w2/checkpoint")


def reshard(tree: Path) -> Way:
    source = GOLDEN / "z2-bf16-w3/checkpoint"
    return command(tree, "reshard", "--world-size", 2, source)


def first_step(tree: Path) -> Way:
    """One CPU rank, from its start to the report of its first step."""
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        (directory / "text").write_text("a line of text\n" * 200)
        out = directory / "way.json"
        train = {"steps": 1, "batch_size": 2, "precision": "fp32"}
        job = {
            "device": "cpu",
            "ranks": 1,
            "model": {"config": TINY_LLAMA},
            "data": {"text": [str(directory / "text")], "sequence_length": 32},
            "train": train,
            "env": {"WAYS_TREE": str(tree), "WAYS_OUT": str(out)},
        }
        attempt = start(directory / "run", job, script=TRACE)
        if attempt.finish() != [0]:
            raise RuntimeError(attempt.log())
        return traced(out)


def key(tree: Path) -> Way:
    """Files that name a key of the job file."""
    files = [file for part in ("zerotools", "daemon") for file in (tree / part).rglob("*.py")]
    named = [file for file in files if re.search(rf"\b{KEY}\b", file.read_text())]
    return Way([str(file.relative_to(tree)) for file in named], None)


WAYS: Mapping[str, Callable[[Path], Way]] = {
    "`zerotools consolidate` of ZeRO-3, 2 ranks": consolidate,
    "a rank of engine torch, from its start to its first step": first_step,
    f"files that name the key `offload.{KEY}`": key,
    "`zerotools reshard` of ZeRO-2, 3 to 2 ranks": reshard,
}


def revision(tree: Path) -> str:
    """The short name of the tree's commit."""
    command = ["git", "-C", str(tree), "rev-parse", "--short", "HEAD"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trees", type=Path, nargs="*", default=[ROOT])
    parser.add_argument("--files", action="store_true", help="list them, in order")
    options = parser.parse_args()
    trees = [tree.resolve() for tree in options.trees]
    print(f"| files / returns | {' | '.join(map(revision, trees))} |")
    print(f"|---|{'---|' * len(trees)}")
    for name, follow in WAYS.items():
        ways = [follow(tree) for tree in trees]
        print(f"| {name} | {' | '.join(map(str, ways))} |")
        if options.files:
            for way in ways:
                print("\n" + "\n".join(way.files) + "\n")
