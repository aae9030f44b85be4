"""What one rank of a case runs, in the case directory.

python -m tests.golden.foreign_runs.rank CASE
"""

import json
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist

from ..deepspeed_runs.launch import leave
from .cases import CASES
from .setting import CONFIG


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    case = CASES[sys.argv[1]]
    if case.ranks > 1 and not dist.is_initialized():
        dist.init_process_group("gloo")
    losses = case.run(Path("checkpoint"))
    if not dist.is_initialized() or dist.get_rank() == 0:
        facts = {
            "about": case.about,
            "ranks": case.ranks,
            "config": {**CONFIG, **case.changes},
            "losses": losses,
        }
        Path("continued.json").write_text(json.dumps(facts, indent=1) + "\n")
    if dist.is_initialized():
        dist.barrier()
        leave()


if __name__ == "__main__":
    main()
