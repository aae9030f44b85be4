"""What one rank of a case runs, in the case directory.

python -m tests.golden.torch_runs.rank CASE
"""

import json
import sys
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
from safetensors.torch import save_file

from ..deepspeed_runs.launch import leave
from .cases import CASES


def main() -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    case = CASES[sys.argv[1]]
    checkpoint = Path("checkpoint")
    checkpoint.mkdir(exist_ok=True)
    if case.world_size > 1:
        dist.init_process_group("gloo")
    tensors = case.save(checkpoint)
    if case.world_size == 1 or dist.get_rank() == 0:
        save_file(tensors, "truth.safetensors")
        facts = {
            "case": case.name,
            "about": case.about,
            "world_size": case.world_size,
            "torch": torch.__version__.partition("+")[0],
        }
        Path("truth.json").write_text(json.dumps(facts, indent=1) + "\n")
    if case.world_size > 1:
        dist.barrier()
        leave()


if __name__ == "__main__":
    main()
