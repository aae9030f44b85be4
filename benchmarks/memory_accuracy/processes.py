"""Estimates of whole jobs beside the memory of their processes.

`python -m benchmarks.memory_accuracy.processes` runs small jobs on the CPU under a daemon of its
own, one rank each, and compares the most memory of the rank's process with the estimate of the job
file: state, activations, loss and the program itself.
"""

from __future__ import annotations

import json
import pydoc
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

JOB = """\
device = "cpu"
ranks = 1
[model.config]
model_type = "llama"
hidden_size = 512
intermediate_size = 1376
num_hidden_layers = 8
num_attention_heads = 8
vocab_size = 8192
max_position_embeddings = 2048
[data]
text = ["text.txt"]
tokenizer = "bytes"
sequence_length = {length}
[train]
steps = 4
batch_size = 4
precision = "{precision}"
activation_checkpointing = {again}
[zero]
stage = {stage}
[checkpoint]
every = 100
"""
MIB = 1 << 20
CASES = list(product((0, 3), ("fp32", "bf16"), (256, 1024), (False, True)))


def main() -> None:
    """Print one row for each job."""
    with tempfile.TemporaryDirectory() as place:
        directory = Path(place)
        (directory / "text.txt").write_text(pydoc.render_doc("builtins"))
        socket = directory / "s.sock"
        said = ("--state-dir", str(directory / "state"), "--socket", str(socket))
        daemon = subprocess.Popen([sys.executable, "-m", "zerotoolsd", *said])
        try:
            while not socket.exists():
                time.sleep(0.1)
            print("| stage | type | tokens | again | process | estimate | off |")
            print("|---|---|---|---|---:|---:|---:|")
            for number, case in enumerate(CASES, start=1):
                print(_row(directory, socket, number, *case), flush=True)
        finally:
            daemon.terminate()
            daemon.wait()


def _row(
    directory: Path, socket: Path, number: int, stage: int, precision: str, length: int, again: bool
) -> str:
    file = directory / f"job{number}.toml"
    checkpointing = str(again).lower()
    text = JOB.format(stage=stage, precision=precision, length=length, again=checkpointing)
    file.write_text(text)
    _zerotools("submit", "--follow", "--socket", str(socket), str(file))
    shown = json.loads(_zerotools("show", "--json", "--socket", str(socket), str(number)))
    held = max(_values(shown, "peak_host_bytes"))
    estimated = json.loads(_zerotools("estimate", "--json", str(file)))["asked"]["host_bytes"]
    cells = (
        str(stage),
        precision,
        f"4 x {length}",
        "yes" if again else "",
        f"{held / MIB:,.0f} MiB",
        f"{estimated / MIB:,.0f} MiB",
        f"{estimated / held - 1:+.0%}",
    )
    return f"| {' | '.join(cells)} |"


def _zerotools(*arguments: str) -> str:
    command = [sys.executable, "-m", "zerotools", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _values(tree: Any, name: str) -> Iterator[int]:
    """Every number of that name in a tree."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            if key == name and isinstance(value, int):
                yield value
            yield from _values(value, name)
    elif isinstance(tree, list):
        for value in tree:
            yield from _values(value, name)


if __name__ == "__main__":
    main()
