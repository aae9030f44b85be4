"""Where the tables of `benchmarks.zero` are made: this machine's GPUs or, without, its CPUs."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

GIB = 1 << 30
_ASK = """
import json, torch
found = range(torch.cuda.device_count())
print(json.dumps([(torch.cuda.get_device_name(n), torch.cuda.mem_get_info(n)[0]) for n in found]))
"""


@dataclass(frozen=True)
class Setting:
    """`ranks` processes on `device`, "cpu" or "cuda", that write to the directory `work`.

    `free_bytes` is what the fullest of the GPUs has left, `cap_bytes` what table `largest` lets a
    GPU be used of; with `recomputes`, activations are computed again in the backward pass. `only`
    has the names of the cases of tables `steps` and `largest`; empty: all of them.
    """

    work: Path
    device: str = "cpu"
    ranks: int = 2
    free_bytes: int = 0
    cap_bytes: int = 8 * GIB
    recomputes: bool = False
    only: tuple[str, ...] = ()

    def has(self, name: str) -> bool:
        """Whether the case of this name is asked for."""
        return not self.only or name in self.only


def gpus() -> list[tuple[str, int]]:
    """Name and free bytes of each GPU that torch sees.

    Asked in a process of its own: one that has looked keeps some of a GPU's memory.
    """
    if not list(Path("/dev").glob("nvidia[0-9]*")):
        return []
    asked = subprocess.run([sys.executable, "-c", _ASK], stdout=subprocess.PIPE, check=True)
    return [(name, free) for name, free in json.loads(asked.stdout)]
