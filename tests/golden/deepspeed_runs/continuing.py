"""What one rank runs to train on: `python -m tests.golden.deepspeed_runs.continuing RUNS.json`.

Each run makes an engine of its own, loads a checkpoint or starts afresh, takes steps with the fixed
global batch, and may save. Loss, skips and loss scale of every step go to `OUT.json`; what the
engine held right after loading, or when it saved, to `OUT.safetensors`.
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

from . import truth
from .case import Case, deepspeed_config, with_zero
from .cases_continued import CONTINUED
from .launch import leave
from .learners import GLOBAL_BATCH, LEARNERS, batch, forget
from .optimizers import CLIENT_OPTIMIZERS
from .rank import allow_fp16_on_cpu

MICRO, ACCUMULATION = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
Run = Mapping[str, Any]


def config_of(case: Case, changes: Mapping[str, Any]) -> dict[str, Any]:
    """The case's configuration at this number of ranks; `changes` are of `zero_optimization`.

    Stage 3 would put a linear of its own, which rounds differently, into the place of torch's for
    every later engine of the process.
    """
    config = deepspeed_config(case)
    config["zero_optimization"]["memory_efficient_linear"] = False
    share = GLOBAL_BATCH // dist.get_world_size()
    config[MICRO] = case.config.get(MICRO, share)
    config[ACCUMULATION] = share // config[MICRO]
    return with_zero(config, changes)


def engine_of(run: Run) -> Any:
    """A fresh engine; where it is to load, none of its weights is right before that."""
    case = CONTINUED[run["case"]]
    model = LEARNERS[case.model]()
    if run["load"]:
        forget(model)
    groups = model.groups()
    client = CLIENT_OPTIMIZERS.get(case.optimizer)
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=None if client else groups,
        optimizer=client(groups) if client else None,
        config=config_of(case, run["changes"]),
    )
    return engine


def take_step(engine: Any, step: int) -> float:
    """One optimizer step over this rank's part of the batch; the mean loss over all samples."""
    tokens, targets = batch(step)
    micro, ranks = engine.train_micro_batch_size_per_gpu(), dist.get_world_size()
    total = torch.zeros((), dtype=torch.float64)
    for number in range(engine.gradient_accumulation_steps()):
        first = (number * ranks + dist.get_rank()) * micro
        loss = engine(tokens[first : first + micro], targets[first : first + micro])
        engine.backward(loss)
        engine.step()
        total += loss.detach().double() * micro
    dist.all_reduce(total)
    return float(total) / GLOBAL_BATCH


def facts_of(engine: Any) -> dict[str, Any]:
    """What the run is at besides its tensors."""
    return {
        "step": engine.global_steps,
        "skipped": engine.skipped_steps,
        "loss_scale": truth.loss_scale(engine),
        "lr": engine.get_lr(),
    }


def hold(engine: Any, run: Run) -> dict[str, Any]:
    """Writes down every tensor of the engine; returns the other facts; collective."""
    tensors = truth.gather_tensors(engine)
    if dist.get_rank() == 0:
        save_file(tensors, f"{run['out']}.safetensors")
    return facts_of(engine)


def carry_out(run: Run) -> None:
    """One run; collective."""
    engine = engine_of(run)
    held: dict[str, Any] = {}
    if run["load"]:
        moments = not run["weights_only"]
        path, _ = engine.load_checkpoint(run["load"], load_optimizer_states=moments)
        if path is None:
            raise AssertionError(f"DeepSpeed found nothing to load in {run['load']}")
        held = hold(engine, run)
    curve = []
    for step in range(run["first"], run["last"] + 1):
        loss = take_step(engine, step)
        curve.append({"loss": loss} | facts_of(engine))
        if step == run["save_after"]:
            held = hold(engine, run)
            engine.save_checkpoint(run["save"])
    if dist.get_rank() == 0:
        precision = CONTINUED[run["case"]].precision
        found = {"precision": precision, "held": held, "curve": curve}
        Path(f"{run['out']}.json").write_text(json.dumps(found))


def main() -> None:
    torch.set_num_threads(1)
    allow_fp16_on_cpu()
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    for run in json.loads(Path(sys.argv[1]).read_text()):
        print("running", run["out"], flush=True)
        carry_out(run)
        dist.barrier()
    leave()


if __name__ == "__main__":
    main()
