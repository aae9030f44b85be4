"""One rank of a case of `bridged_cases`, in its directory: `python -m
tests.golden.megatron_runs.bridged_rank hub|save|logits CASE`."""

import json
import os
import sys
import zlib
from argparse import Namespace
from importlib.metadata import version
from pathlib import Path

import torch

from . import stand_ins

stand_ins.install()
import torch.distributed as dist  # noqa: E402
from megatron.core import dist_checkpointing  # noqa: E402
from safetensors.torch import save_file  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

from .bridged_cases import CASES, Bridged  # noqa: E402
from .bridged_models import model_of  # noqa: E402

HUB, SAVED, ITERATION = Path("model"), Path("checkpoint"), 10


def hub(case: Bridged) -> None:
    """The model of the Hub, with values by name."""
    options = {key: value for key, value in case.hub.items() if key != "model_type"}
    config = AutoConfig.for_model(case.hub["model_type"], **options)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    is_centred = case.hub["model_type"].startswith("gemma")
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            random = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            made = torch.randn(value.shape, generator=random) * 0.1
            value.copy_(made + (1 if "norm" in name and not is_centred else 0))
    model.save_pretrained(HUB)


def save(case: Bridged) -> None:
    """The model that the program makes of it, saved by all ranks."""
    model, save_as_program = model_of(case, HUB)
    if save_as_program:
        save_as_program(SAVED)
    else:
        where = SAVED / f"iter_{ITERATION:07d}"
        where.mkdir(parents=True, exist_ok=True)
        config = model.config
        names = ("num_layers", "hidden_size", "num_attention_heads", "num_query_groups")
        args = Namespace(**{name: getattr(config, name) for name in names})
        state = {"args": args, "checkpoint_version": 3.0, "iteration": ITERATION}
        state["model"] = model.sharded_state_dict()
        # mcore-bridge 1.6.5 says of a norm of GLM 4 on each tensor-parallel rank that it is the
        # first copy: all ranks write it, which this check refuses.
        dist_checkpointing.save(state, str(where), validate_access_integrity=False)
        (SAVED / "latest_checkpointed_iteration.txt").write_text(str(ITERATION))
    if dist.get_rank() == 0:
        programs = (case.program, "megatron-core", "transformers")
        facts = {"case": case.name, "world_size": case.world_size}
        facts |= {name: version(name) for name in programs}
        Path("truth.json").write_text(json.dumps(facts, indent=1) + "\n")


def logits(case: Bridged) -> None:
    """What Megatron computes of what was saved, on one rank."""
    model, _ = model_of(case.alone(), HUB)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(float("nan"))
    (where,) = SAVED.glob("iter_*")
    prefixed = {"model": model.sharded_state_dict()}
    loaded = dist_checkpointing.load(prefixed, str(where))
    model.load_state_dict(loaded["model"], strict=False)
    rows = case.hub["vocab_size"]
    tokens = torch.randint(rows, (2, 12), generator=torch.Generator().manual_seed(1))
    places = torch.arange(tokens.shape[1])[None].expand_as(tokens)
    with torch.no_grad():
        made = model.eval()(tokens, places, None)[..., :rows]
    assert made.isfinite().all(), f"{case.name}: a weight was not loaded"
    save_file({"tokens": tokens, "logits": made.contiguous()}, "logits.safetensors")


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    {"hub": hub, "save": save, "logits": logits}[sys.argv[1]](CASES[sys.argv[2]])
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
