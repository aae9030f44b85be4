"""What one rank of a case runs, in the case directory.

    python -m tests.golden.deepspeed_runs.rank CASE

Reads RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. Writes `checkpoint/`, and on rank 0 the truth.
"""

import argparse
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import deepspeed
import numpy
import torch
import torch.distributed as dist
from deepspeed.accelerator import get_accelerator
from safetensors.torch import save_file
from torch import Tensor

from . import truth
from .case import Case, Save, deepspeed_config
from .cases import ALL_CASES
from .launch import leave
from .models import MODELS, Model
from .optimizers import CLIENT_OPTIMIZERS
from .swapping import stand_in

OVERFLOW = 1e30
CHECKPOINT = "checkpoint"


def allow_fp16_on_cpu() -> None:
    """DeepSpeed refuses fp16 on the CPU although it works there; only this harness overrides it."""
    get_accelerator().is_fp16_supported = lambda: True


def client_state(kind: str, step: int) -> dict[str, Any]:
    """State of the caller, as two frameworks store it; numbers are invented."""
    if kind == "megatron":
        return {
            "args": argparse.Namespace(hidden_size=8, layers=2, tensor_parallel=1, name="tiny"),
            "iteration": step,
            "checkpoint_version": 3.0,
            "random_rng_state": (3, (2147483648, 5, 7), None),
            "np_rng_state": numpy.random.RandomState(5).get_state(),
            "tags": {"seen"},
        }
    if kind == "lightning":
        return {
            "epoch": 0,
            "global_step": step,
            "pytorch-lightning_version": "2.5.0",
            "loops": {"fit_loop": {"state_dict": {}, "epoch_progress": {"current": {"ready": 1}}}},
            "callbacks": {"ModelCheckpoint{'monitor': None}": {"best_model_score": None}},
            "lr_schedulers": [],
            "hparams_name": "kwargs",
            "hyper_parameters": {"lr": 0.01},
        }
    return {}


def tag_of(case: Case, save: Save, engine: Any) -> tuple[str, str]:
    """The tag, and the path of its directory below `checkpoint/` in the committed case."""
    tag = save.tag or f"global_step{engine.global_steps}"
    if case.harness == "accelerate":
        return "pytorch_model", "pytorch_model"
    if case.harness == "trainer":
        return tag, f"checkpoint-{case.steps}/{tag}"
    return tag, f"{tag}_universal" if case.universal else tag


def run_facts(case: Case, save: Save, engine: Any) -> dict[str, Any]:
    """What `truth.json` says of every case."""
    tag, directory = tag_of(case, save, engine)
    return {
        "case": case.name,
        "about": case.about,
        "tag": tag,
        "directory": directory,
        "latest": save.latest,
        "stage": case.stage,
        "world_size": dist.get_world_size(),
        "dtype": case.precision,
        "steps_run": save.step,
        "global_steps": engine.global_steps,
        "skipped_steps": engine.skipped_steps,
        "loss_scale": truth.loss_scale(engine),
        "optimizer_class": type(engine.optimizer).__name__,
        "config": engine.config,
        "deepspeed": deepspeed.__version__,
        "torch": torch.__version__.partition("+")[0],
    }


def model_facts(save: Save, engine: Any, groups: list[list[str]]) -> dict[str, Any]:
    """What `truth.json` says of a model that every rank knows whole."""
    model = engine.module
    return {
        "param_groups": truth.groups_of(engine, groups),
        "parameter_order": [name for name, _ in model.named_parameters()],
        "shapes": truth.live_shapes(model),
        "aliases": truth.aliases(model),
        "frozen": [n for n, p in model.named_parameters() if not p.requires_grad],
        "exclude_frozen_parameters": save.exclude_frozen,
        "never_stepped": [f"{n}." for n in getattr(model, "idle", ())],
    }


def write_truth(tensors: dict[str, Tensor], facts: dict[str, Any], suffix: str = "") -> None:
    """Rank 0 writes both files of the truth into the current directory."""
    if dist.get_rank() == 0:
        save_file(tensors, f"truth{suffix}.safetensors")
        Path(f"truth{suffix}.json").write_text(json.dumps(facts, indent=1) + "\n")


def write_engine_truth(case: Case, save: Save, engine: Any, groups: list[list[str]]) -> None:
    """The truth of a model that every rank knows whole; collective."""
    facts = run_facts(case, save, engine)
    newest = [s for s in case.saves if s.latest][-1]
    facts |= model_facts(save, engine, groups)
    suffix = "" if save is newest else f".{facts['tag']}"
    write_truth(truth.gather_tensors(engine), facts, suffix)


def muon_halves(model: Model, groups: list[list[str]]) -> list[list[str]]:
    """The groups that DeepSpeed makes of each: what Muon updates, then what AdamW does."""
    parameters = dict(model.named_parameters())
    halves = [
        [name for name in group if parameters[name].use_muon is by_muon]
        for group in groups
        for by_muon in (True, False)
    ]
    return [half for half in halves if half]


def model_of(case: Case) -> Model:
    """The model of a case; MiCS cuts it as it is made."""
    if case.harness != "mics":
        return MODELS[case.model]()
    with deepspeed.zero.MiCS_Init(config_dict_or_path=deepspeed_config(case)):
        return MODELS[case.model]()


def sequence_ranks() -> ModuleType:
    """Pairs of ranks that share sequences."""
    from deepspeed.runtime.sequence_parallel import parallel_state_sp

    parallel_state_sp.initialize_sequence_parallel(2)
    return parallel_state_sp


def run_engine(case: Case) -> None:
    """Trains and saves with DeepSpeed alone; collective."""
    model = model_of(case)
    groups = model.groups()
    names = model.group_names()
    client = CLIENT_OPTIMIZERS.get(case.optimizer)
    if case.zero.get("offload_optimizer", {}).get("device") == "nvme":
        stand_in()
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=None if client else groups,
        optimizer=client(groups) if client else None,
        config=deepspeed_config(case),
        mpu=sequence_ranks() if case.harness == "sequence" else None,
    )
    if case.optimizer == "muon":
        names = muon_halves(model, names)
    for step in range(case.steps + 1):
        if step:
            loss = engine(step, dist.get_rank())
            engine.backward(loss * OVERFLOW if step in case.overflow_steps else loss)
            engine.step()
        for save in (s for s in case.saves if s.step == step):
            engine.save_checkpoint(
                CHECKPOINT,
                tag=save.tag,
                client_state=client_state(save.client_state, step),
                save_latest=save.latest,
                exclude_frozen_parameters=save.exclude_frozen,
            )
            if save.export16:
                engine.save_16bit_model(CHECKPOINT)
            write_engine_truth(case, save, engine, names)


def run(case: Case) -> None:
    """Lets the harness of the case train and save; the others are imported only when needed."""
    save = case.saves[-1]
    if case.harness in ("engine", "sequence", "mics"):
        run_engine(case)
    elif case.harness in ("trainer", "accelerate"):
        from .surroundings import run_accelerate, run_trainer

        runner = run_trainer if case.harness == "trainer" else run_accelerate
        write_engine_truth(case, save, *runner(case))
    elif case.harness == "autoep":
        from .autoep import run_autoep

        engine, tensors, facts = run_autoep(case)
        write_truth(tensors, run_facts(case, save, engine) | facts)
    else:
        from .parallel import run_parallel

        engine, tensors = run_parallel(case)
        write_truth(tensors, run_facts(case, save, engine))
    dist.barrier()


def main() -> None:
    torch.set_num_threads(1)
    allow_fp16_on_cpu()
    deepspeed.init_distributed(dist_backend="gloo", verbose=False)
    run(ALL_CASES[sys.argv[1]])
    leave()


if __name__ == "__main__":
    main()
