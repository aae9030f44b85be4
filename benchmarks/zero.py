"""What ZeRO training keeps and costs, on this machine's GPU or, without one, on its CPUs.

    python -m benchmarks.zero [states] [steps] [adam] [--ranks N] [--work DIR]

states  bytes per rank at every stage and offload: the textbook, what is predicted, what is held
steps   time of a step, both engines at every stage, our loop beside a bare one
adam    the optimizer's step on the CPU: torch's fused AdamW, its loop, DeepSpeed's CPU Adam

All of them without a name. Each prints a table.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

from benchmarks.measuring import machine


def states(work: Path, device: str, ranks: int) -> Iterator[str]:
    from benchmarks.zero_states import table

    return table(work, device, 4 if device == "cpu" else ranks)


def steps(work: Path, device: str, ranks: int) -> Iterator[str]:
    from benchmarks.zero_steps import table

    return table(work, device, ranks)


def adam(work: Path, device: str, ranks: int) -> Iterator[str]:
    from benchmarks.zero_adam import table

    return table()


TABLES: dict[str, Callable[[Path, str, int], Iterator[str]]] = {
    "states": states,
    "steps": steps,
    "adam": adam,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    # argparse holds the empty list to the choices, too.
    parser.add_argument("names", nargs="*", choices=[*TABLES, []], metavar="TABLE")
    parser.add_argument("--ranks", type=int, help="default: 2 on CPUs, else the GPUs there are")
    parser.add_argument("--work", type=Path, help="a directory with room; default: a temporary one")
    options = parser.parse_args()
    gpus = len(list(Path("/dev").glob("nvidia[0-9]*")))
    device, ranks = ("cuda", gpus) if gpus else ("cpu", 2)
    load = os.getloadavg()[0]
    print(f"{machine()}, {gpus} GPUs; torch {version('torch')}, DeepSpeed {version('deepspeed')};")
    print(f"load {load:.1f} at the start")
    with tempfile.TemporaryDirectory(dir=options.work) as work:
        for name in options.names or TABLES:
            print()
            for line in TABLES[name](Path(work), device, options.ranks or ranks):
                print(line, flush=True)


if __name__ == "__main__":
    main()
