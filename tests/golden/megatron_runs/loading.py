"""Megatron-Core's own loader, on one rank, finds what the truth of each case says of the weights.

    PYTHONPATH=.:DIR python -m tests.golden.megatron_runs.loading GOLDEN [CASE ...]

GOLDEN is such as tests/golden/megatron-core-0.16.1, and DIR has that megatron-core. The model is
whole there, so that nothing is joined.
"""

import os
import sys
from dataclasses import replace
from pathlib import Path

import torch

from . import stubs

stubs.before_import()
import megatron.core  # noqa: E402, F401

stubs.after_import()
import torch.distributed as dist  # noqa: E402
from megatron.core import dist_checkpointing, parallel_state  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

from harness.ports import free_port  # noqa: E402

from .cases import CASES  # noqa: E402
from .live import build  # noqa: E402


def differing(root: Path, name: str) -> list[str]:
    """Weights that Megatron loads otherwise than the truth has them."""
    case = replace(CASES[name], tp=1, pp=1, ep=1, etp=None, dp=1, optimizer=None)
    wrapped, _ = build(case)
    model = wrapped.module
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    state = {"model": model.sharded_state_dict(metadata=dict(case.metadata))}
    directory = root / name / "checkpoint" / "iter_0000010"
    loaded = dist_checkpointing.load(state, str(directory))
    model.load_state_dict(loaded["model"], strict=False)
    truth = load_file(root / name / "truth.safetensors")
    found = dict(model.named_parameters())
    wrong = []
    for key, value in truth.items():
        weight, _, role = key.partition("|")
        is_weight = role == "param16" or (role == "param" and f"{weight}|param16" not in truth)
        if is_weight and weight in found and not torch.equal(found.pop(weight), value):
            wrong.append(weight)
    parallel_state.destroy_model_parallel()
    return wrong + [f"{name}: no truth" for name in found if name != "output_layer.weight"]


def main() -> None:
    root = Path(sys.argv[1])
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    dist.init_process_group("gloo", rank=0, world_size=1)
    names = sys.argv[2:] or sorted(path.name for path in root.iterdir())
    failed = False
    for name in names:
        if CASES[name].format == "torch_dist":
            wrong = differing(root, name)
            failed = failed or bool(wrong)
            print(f"{name}: {wrong or 'equal'}", flush=True)
    sys.stdout.flush()
    os._exit(failed)


if __name__ == "__main__":
    main()
