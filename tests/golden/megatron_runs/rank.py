"""One rank of a case, in the directory of the case.

python -m tests.golden.megatron_runs.rank CASE
"""

import json
import os
import sys
from pathlib import Path

import torch

from . import stubs

stubs.before_import()
from megatron.core import __version__ as version  # noqa: E402

stubs.after_import()
import torch.distributed as dist  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

from . import continuing  # noqa: E402
from .cases import CASES, Case  # noqa: E402
from .hub_cases import AFTER, BEFORE, CONTINUED, HUB_CASES  # noqa: E402
from .live import build, train  # noqa: E402
from .saving import save  # noqa: E402
from .truth import gather  # noqa: E402

ITERATION = 10


def main() -> None:
    torch.set_num_threads(1)
    case = (CASES | HUB_CASES)[sys.argv[1]]
    dist.init_process_group("gloo")
    run = Path("checkpoint")
    iteration = BEFORE if case.name == CONTINUED else ITERATION
    if case.format == "fsdp_dtensor":
        from . import fsdp  # of 0.16 alone

        truth = fsdp.run(case, run / f"iter_{iteration:07d}", iteration)
    else:
        model, optimizer = build(case)
        if case.name == CONTINUED:
            continuing.train_on_tokens(model, optimizer, BEFORE)
        elif optimizer is not None:
            train(model, optimizer)
        truth = gather(case, model, optimizer)
        save(case, model, optimizer, run, iteration)
    if case.name == CONTINUED:
        facts = continuing.continued(model, optimizer, AFTER)
        Path("continued.json").write_text(json.dumps(facts, indent=1) + "\n")
    dist.barrier()
    if dist.get_rank() == 0:
        (run / "latest_checkpointed_iteration.txt").write_text(str(iteration))
        save_file(truth, "truth.safetensors")
        Path("truth.json").write_text(json.dumps(_facts(case, iteration), indent=1) + "\n")
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def _facts(case: Case, iteration: int) -> dict[str, object]:
    return {
        "case": case.name,
        "about": case.about,
        "world_size": case.world_size,
        "iteration": iteration,
        "megatron_core": version,
        "torch": torch.__version__.partition("+")[0],
    }


if __name__ == "__main__":
    main()
