"""What ZeRO training keeps and costs, on this machine's GPUs or, without one, on its CPUs.

    python -m benchmarks.zero [states] [steps] [alone] [adam] [largest] [--ranks N] [--work DIR]
        [--only CASE ...]

states   bytes per rank at every stage and offload: the textbook, what is predicted, what is held
steps    time of a step, tokens per second and MFU: both engines at every stage, our loop beside a
         bare one, engine torch beside the fastest of the others
alone    processor time of a step of one rank at four sizes, beside a loop without FSDP2; and what
         of both is outside of forward and backward passes, loss and optimizer
adam     the optimizer's step on the CPU: torch's fused AdamW, its loop, DeepSpeed's CPU Adam
largest  the largest model that trains in --gib of one GPU, at every stage and offload: what the
         state alone would allow, and what trained

All of them without a name. Each prints a table.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

from benchmarks.measuring import machine, work_directory
from benchmarks.zero_training.setting import GIB, Setting, gpus


def states(setting: Setting) -> Iterator[str]:
    from benchmarks.zero_training.states import table

    return table(setting)


def steps(setting: Setting) -> Iterator[str]:
    from benchmarks.zero_training.steps import table

    return table(setting)


def alone(setting: Setting) -> Iterator[str]:
    from benchmarks.zero_training.alone import table

    return table(setting)


def adam(setting: Setting) -> Iterator[str]:
    from benchmarks.zero_training.adam import table

    return table()


def largest(setting: Setting) -> Iterator[str]:
    from benchmarks.zero_training.largest import table

    return table(setting)


TABLES: dict[str, Callable[[Setting], Iterator[str]]] = {
    "states": states,
    "steps": steps,
    "alone": alone,
    "adam": adam,
    "largest": largest,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    # argparse holds the empty list to the choices, too.
    parser.add_argument("names", nargs="*", choices=[*TABLES, []], metavar="TABLE")
    parser.add_argument("--ranks", type=int, help="default: 2 on CPUs, else the GPUs there are")
    parser.add_argument(
        "--work", type=work_directory, help="a directory with room; default: a temporary one"
    )
    parser.add_argument(
        "--gib", type=float, default=8.0, help="memory of the GPU in table largest; default: 8"
    )
    parser.add_argument(
        "--activation-checkpointing", action="store_true", help="in table steps, of all loops"
    )
    parser.add_argument(
        "--only", nargs="+", default=[], metavar="CASE", help="of tables steps and largest"
    )
    options = parser.parse_args()
    found = gpus()
    names = ", ".join(sorted({name for name, _ in found}))
    print(f"{machine()}, {len(found)} GPUs{f' ({names})' if names else ''};")
    print(f"torch {version('torch')}, DeepSpeed {version('deepspeed')}; ", end="")
    print(f"load {os.getloadavg()[0]:.1f} at the start")
    with tempfile.TemporaryDirectory(dir=options.work) as work:
        setting = Setting(
            Path(work),
            device="cuda" if found else "cpu",
            ranks=options.ranks or len(found) or 2,
            free_bytes=min((free for _, free in found), default=0),
            cap_bytes=int(options.gib * GIB),
            recomputes=options.activation_checkpointing,
            only=tuple(options.only),
        )
        for name in options.names or TABLES:
            print()
            for line in TABLES[name](setting):
                print(line, flush=True)


if __name__ == "__main__":
    main()
