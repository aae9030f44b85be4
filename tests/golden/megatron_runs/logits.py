"""The logits of a case as Megatron-Core itself computes them, on one rank and in 32 bits.

    PYTHONPATH=.:DIR python -m tests.golden.megatron_runs.logits GOLDEN [CASE ...]

Megatron's own loader reads the checkpoint (of Megatron-FSDP, the truth is taken).
`GOLDEN/CASE/logits.safetensors` gets the tokens and the logits, (batch, length, vocabulary) without
padding. DIR has megatron-core.
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
from safetensors.torch import load_file, save_file  # noqa: E402

from harness.ports import free_port  # noqa: E402

from .cases import CASES, Case  # noqa: E402
from .hub_cases import HUB_CASES, HUB_CONFIGS  # noqa: E402
from .live import VOCABULARY, model_of  # noqa: E402


def logits_of(root: Path, name: str) -> dict[str, torch.Tensor]:
    """`tokens` and `logits` of the case; an MTP layer, which does not change them, is left out."""
    case = (CASES | HUB_CASES)[name]
    sizes = {key: value for key, value in case.model.items() if key != "mtp_num_layers"}
    if "num_moe_experts" in sizes:
        sizes["moe_token_dispatcher_type"] = "allgather"  # the other kind waits for events of CUDA
    case = replace(case, tp=1, pp=1, ep=1, etp=None, dp=1, model=sizes, precision="fp32")
    _, model = model_of(case)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
    model.load_state_dict(_weights(root / name, case, model), strict=False)
    rows = HUB_CONFIGS[name]["vocab_size"] if name in HUB_CONFIGS else VOCABULARY
    tokens = torch.randint(rows, (2, 12), generator=torch.Generator().manual_seed(1))
    places = torch.arange(tokens.shape[1])[None].expand_as(tokens)
    later = torch.ones(tokens.shape[1], tokens.shape[1], dtype=torch.bool).triu(1)
    with torch.no_grad():
        logits = model.eval()(tokens, places, later[None, None])[..., :rows]
    parallel_state.destroy_model_parallel()
    assert logits.isfinite().all(), f"{name}: a weight was not loaded"
    return {"tokens": tokens, "logits": logits.contiguous()}


def _weights(directory: Path, case: Case, model) -> dict[str, torch.Tensor]:
    if case.format == "fsdp_dtensor":  # which Megatron loads into Megatron-FSDP alone
        truth = load_file(directory / "truth.safetensors")
        return {key.removesuffix("|param"): value for key, value in truth.items()}
    state = {"model": model.sharded_state_dict(metadata=dict(case.metadata))}
    (iteration,) = (directory / "checkpoint").glob("iter_*")
    return dist_checkpointing.load(state, str(iteration))["model"]


def main() -> None:
    root = Path(sys.argv[1])
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    dist.init_process_group("gloo", rank=0, world_size=1)
    for name in sys.argv[2:]:
        save_file(logits_of(root, name), root / name / "logits.safetensors")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
