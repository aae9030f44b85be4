"""What one rank runs to judge thinned checkpoints.

    python -m tests.golden.deepspeed_runs.judge_thinned

For each case in `cases.json`, unmodified DeepSpeed loads the weights of `CASE/given`, without the
state of the optimizer. What the engine then holds is compared with the truth, in the type that the
run computes in, which is all that it takes from a checkpoint in this way. Then it is asked to
resume with the optimizer's state, and must fail.
"""

import json
from pathlib import Path

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
from safetensors.torch import load_file

from tests.golden_files import DEEPSPEED

from . import truth
from .cases import CASES
from .judge import engine_of
from .launch import leave
from .rank import allow_fp16_on_cpu


def judge(name: str, keep: str) -> list[str]:
    """What is not as it should be; collective."""
    engine, home = engine_of(CASES[name]), f"{name}/given"
    path, _ = engine.load_checkpoint(home, load_optimizer_states=False)
    found = [] if path else ["nothing was loaded"]
    live = truth.live_weights(engine.module) | dict(engine.module.named_buffers())
    expected = load_file(DEEPSPEED / name / "truth.safetensors")
    for key, value in expected.items():
        weight, _, role = key.partition("|")
        if role in ("param", "buffer") and not torch.equal(live[weight], value.to(live[weight])):
            found.append(f"another {weight}")
    # It does not know BF16_Optimizer, thinned or not.
    if keep == "masters" and not name.startswith("bf16-optimizer") and dist.get_rank() == 0:
        masters = get_fp32_state_dict_from_zero_checkpoint(home)
        named = ((n, expected.get(f"{n}|param")) for n in masters)  # buffers are among them
        wrong = [n for n, v in named if v is not None and not torch.equal(masters[n], v.float())]
        found += [f"zero_to_fp32.py finds another {name}" for name in wrong]
    dist.barrier()
    try:
        engine.load_checkpoint(home)
    except (KeyError, TypeError, OSError, AttributeError):
        return found
    return [*found, "it resumes without a word"]


def main() -> None:
    torch.set_num_threads(1)
    allow_fp16_on_cpu()
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    found = {name: judge(name, keep) for name, keep in json.loads(Path("cases.json").read_text())}
    if dist.get_rank() == 0:
        Path("found.json").write_text(json.dumps(found))
    dist.barrier()
    leave()


if __name__ == "__main__":
    main()
