"""One rank that loads a checkpoint of zerotools and saves what it has:
`python -m tests.golden.megatron_runs.ours_rank RUN CASE.json STEPS`.

RUN is the run's directory, CASE.json a `Case`. The model is set to zero before. With an optimizer
STEPS steps are made by Megatron's own optimizer after loading, and what comes of them is saved, in
`checkpoint/`, by Megatron. On one rank in fp32 `logits.safetensors` has what the model computes of
some tokens.
"""

import json
import os
import sys
from contextlib import suppress
from pathlib import Path

import torch

from . import stubs

stubs.before_import()
import megatron.core  # noqa: E402, F401

stubs.after_import()
import torch.distributed as dist  # noqa: E402
from megatron.core import dist_checkpointing, parallel_state  # noqa: E402
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer  # noqa: E402
from safetensors.torch import save_file  # noqa: E402

from .cases import Case  # noqa: E402
from .live import STEPS, build, train  # noqa: E402
from .saving import save  # noqa: E402

_set_states = DistributedOptimizer._set_main_param_and_optimizer_states


def _set_states_of_torch(self, model_param, tensors) -> None:
    """Megatron sets every state that the optimizer has; torch's Adam, which it takes where there is
    no Transformer Engine, has a step of each parameter. It was set already, to one tensor of all,
    which each parameter would count up."""
    group, order = self.model_param_group_index_map[model_param]
    kept = self.optimizer.state[self.optimizer.param_groups[group]["params"][order]]
    kept["step"] = kept["step"].clone()
    _set_states(self, model_param, {"step": kept["step"], **tensors})


TOKENS = [[1, 5, 2, 28, 9, 9, 0, 17]]


def load(case: Case, directory: Path):
    """The model and the optimizer, as they were loaded; everything that is asked for must be
    there."""
    wrapped, optimizer = build(case)
    model = wrapped.module
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.zero_()
    common = dist_checkpointing.load_common_state_dict(str(directory))
    with suppress(AttributeError):
        metadata = dist_checkpointing.load_content_metadata(preloaded_state_dict=common)
    metadata["dp_cp_group"] = parallel_state.get_data_parallel_group(with_context_parallel=True)
    state = {"model": model.sharded_state_dict(metadata=metadata)}
    if optimizer is not None:
        # Without Transformer Engine, Megatron asks its optimizer for the step before it loads one.
        train(wrapped, optimizer)
        DistributedOptimizer._set_main_param_and_optimizer_states = _set_states_of_torch
        state["optimizer"] = optimizer.sharded_state_dict(
            state["model"], is_loading=True, metadata=metadata
        )
    loaded = dist_checkpointing.load(state, str(directory))
    model.load_state_dict(loaded["model"], strict=True)
    if optimizer is not None:
        optimizer.load_state_dict(loaded["optimizer"])
    return wrapped, optimizer, loaded


def logits(model) -> torch.Tensor:
    tokens = torch.tensor(TOKENS)
    length = tokens.shape[1]
    mask = torch.triu(torch.ones(length, length, dtype=torch.bool), diagonal=1)[None, None]
    model.eval()
    with torch.no_grad():
        return model(tokens, torch.arange(length)[None], mask)


def main() -> None:
    torch.set_num_threads(1)
    run, spec, steps = (
        Path(sys.argv[1]),
        json.loads(Path(sys.argv[2]).read_text()),
        int(sys.argv[3]),
    )
    case = Case(**spec)
    dist.init_process_group("gloo")
    word = (run / "latest_checkpointed_iteration.txt").read_text()
    name = word if word == "release" else f"iter_{int(word):07d}"
    wrapped, optimizer, loaded = load(case, run / name)
    if optimizer is not None and steps:
        assert steps == STEPS, steps
        for group in optimizer.param_groups:  # as Megatron's schedule does before each step
            group["weight_decay"] *= group["wd_mult"]
        train(wrapped, optimizer)
    save(case, wrapped, optimizer, Path("checkpoint"), loaded["iteration"])
    dist.barrier()
    if dist.get_rank() == 0:
        Path("checkpoint/latest_checkpointed_iteration.txt").write_text(str(loaded["iteration"]))
        args = vars(loaded["args"])
        Path("args.json").write_text(json.dumps(args, default=str, indent=1))
        if case.precision == "fp32" and dist.get_world_size() == 1 and not case.is_mla:
            save_file({"logits": logits(wrapped.module).contiguous()}, "logits.safetensors")
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
