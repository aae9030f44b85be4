"""What one rank runs to judge checkpoints of runs with a second kind of parallelism:
`python -m tests.golden.deepspeed_runs.judge_parallel MOVES.json`; see `judge`.

The second kind is as the case has it: two pipeline stages, tensor ranks or expert-parallel ranks;
the rest of this launch's ranks are data-parallel.
"""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from safetensors.torch import save_file

from .case import Case
from .cases import CASES
from .judge import AGAIN, GIVEN, LOSSES, TRUTH
from .launch import leave
from .learners import forget
from .parallel import engine_of, gather, model_of, train

STEPS = 2


def judge(case: Case, home: str, changes: Mapping[str, Any]) -> None:
    """Loads, gathers, saves again and trains on; collective."""
    model = model_of(case)
    forget(model)
    engine = engine_of(case, model, changes)
    path, _ = engine.load_checkpoint(f"{home}/{GIVEN}")
    if path is None:
        raise AssertionError(f"{home}: DeepSpeed found nothing to load")
    tensors = gather(case, engine)
    if dist.get_rank() == 0:
        save_file(tensors, f"{home}/{TRUTH}")
    engine.save_checkpoint(f"{home}/{AGAIN}", tag=Path(path).parent.name)
    losses = [train(case, engine, engine.global_steps) for _ in range(STEPS)]
    if dist.get_rank() == 0:
        Path(home, LOSSES).write_text(json.dumps(losses))
    gather(case, engine)


def main() -> None:
    torch.set_num_threads(1)
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    for name, home, changes in json.loads(Path(sys.argv[1]).read_text()):
        print("judging", home, flush=True)
        judge(CASES[name], home, changes)
    dist.barrier()
    leave()


if __name__ == "__main__":
    main()
