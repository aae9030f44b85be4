"""LoRA adapters of Megatron-Bridge and of mcore-bridge (the layers of ms-swift), on two
tensor-parallel ranks: `python -m tests.golden.megatron_runs.adapters --megatron DIR [--out DIR]`.

Each is `PROGRAM-VERSION/lora`: `checkpoint` has the adapter alone, `logits.safetensors` what
Megatron computes with it of the model of the Hub in `model`.
"""

import argparse
import json
import os
import shutil
import sys
import zlib
from argparse import Namespace
from importlib.metadata import version
from pathlib import Path

from tests.golden_files import GOLDEN

from .bridged import version_of
from .bridged_cases import BRIDGE, CASES, MCORE_BRIDGE, Bridged
from .started_ranks import run_ranks

RANK, ALPHA = 4, 6
PROGRAMS = (BRIDGE, MCORE_BRIDGE)
LAYERS = ["linear_qkv", "linear_proj", "linear_fc1", "linear_fc2"]
ADAPTED = (".adapter.", ".lora_A.", ".lora_B.")


def case_of(program: str) -> Bridged:
    """The model: one with query groups, a gated MLP and two layers."""
    hub = CASES[f"{BRIDGE}/qwen2"].hub
    return Bridged("lora", hub, program, tp=2, pp=1)


def generate(program: str, out: Path, packages: Path) -> Path:
    """Write the case anew."""
    directory = out / f"{program}-{version_of(program, packages)}" / "lora"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    for action, ranks in (("hub", 1), ("save", 2)):
        command = [sys.executable, "-m", "tests.golden.megatron_runs.adapters", action, program]
        run_ranks(command, directory, world_size=ranks, megatron=packages, what=program)
    (directory / "model" / "generation_config.json").unlink(missing_ok=True)
    return directory


def adapted(case: Bridged, hub: Path):
    """The model with an adapter of the program's own, and its record of it."""
    from .bridged_models import _of_mcore_bridge, of_bridge

    if case.program == BRIDGE:
        from megatron.bridge import AutoBridge
        from megatron.bridge.peft.lora import LoRA

        lora = LoRA(target_modules=LAYERS, dim=RANK, alpha=ALPHA)
        made = of_bridge(AutoBridge.from_hf_pretrained(str(hub)), case)
        return lora(made, training=False)[0], lora
    import mcore_bridge.tuners.patcher  # noqa: F401
    from peft import LoraConfig, get_peft_model

    config = LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=LAYERS)
    model = _of_mcore_bridge(case, hub)
    for name in ("tie_word_embeddings", "get"):
        if not hasattr(model.config, name):
            setattr(model.config, name, lambda *_: None)
    return get_peft_model(model, config), config


def save(case: Bridged) -> None:
    """The adapter, saved by all ranks, and what the model computes with it."""
    import torch
    import torch.distributed as dist
    from megatron.core import dist_checkpointing, parallel_state
    from safetensors.torch import save_file

    hub, where = Path("model"), Path("checkpoint") / "iter_0000010"
    where.mkdir(parents=True, exist_ok=True)
    model, lora = adapted(case, hub)
    rank = parallel_state.get_tensor_model_parallel_rank()
    for name, value in model.named_parameters():
        if any(word in name for word in ADAPTED):
            is_whole = value.dim() == 2 and not getattr(value, "tensor_model_parallel", False)
            seed = zlib.crc32(f"{name} {0 if is_whole else rank}".encode())
            random = torch.Generator().manual_seed(seed)
            value.data.copy_(torch.randn(value.shape, generator=random) * 0.3)
    inner = model if case.program == BRIDGE else model.base_model.model
    state = inner.sharded_state_dict()
    state = {name: each for name, each in state.items() if any(word in name for word in ADAPTED)}
    args = Namespace(tensor_model_parallel_size=case.tp, swiglu=True, num_layers=2)
    common = {"checkpoint_version": 3.0, "iteration": 10}
    common |= {} if case.program == BRIDGE else {"args": args}
    dist_checkpointing.save({**common, "model": state}, str(where), validate_access_integrity=False)
    rows = case.hub["vocab_size"]
    tokens = torch.randint(rows, (2, 12), generator=torch.Generator().manual_seed(1))
    places = torch.arange(tokens.shape[1])[None].expand_as(tokens)
    with torch.no_grad():
        own = model.eval()(tokens, places, None).contiguous()
    parts = [torch.empty_like(own) for _ in range(case.tp)]
    dist.all_gather(parts, own, group=parallel_state.get_tensor_model_parallel_group())
    if dist.get_rank():
        return
    made = torch.cat(parts, dim=-1)[..., :rows].contiguous()
    save_file({"tokens": tokens, "logits": made}, "logits.safetensors")
    (where.parent / "latest_checkpointed_iteration.txt").write_text("10")
    if case.program == BRIDGE:
        import yaml
        from megatron.bridge.training.config import ConfigContainer

        sizes = {"num_layers": 2, "tensor_model_parallel_size": 2, "gated_linear_unit": True}
        tree = {"model": sizes}
        tree["peft"] = ConfigContainer._convert_value_to_dict(lora)
        (where / "run_config.yaml").write_text(yaml.safe_dump(tree, default_flow_style=False))
    else:
        record = {"lora_rank": RANK, "lora_alpha": ALPHA, "target_modules": LAYERS}
        (where.parent / "args.json").write_text(json.dumps(record))
    facts = {name: version(name) for name in (case.program, "megatron-core", "transformers")}
    Path("truth.json").write_text(json.dumps({"case": "lora", **facts}, indent=1) + "\n")


def of_one_rank(action: str, program: str) -> None:
    """What a rank does, in the directory of the case."""
    from . import bridged_rank  # which has the stand-ins installed  # isort: skip
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    {"hub": bridged_rank.hub, "save": save}[action](case_of(program))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megatron", type=Path)
    parser.add_argument("--out", type=Path, default=GOLDEN)
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    if options.megatron is None:
        of_one_rank(*options.names)
        return
    for program in options.names or PROGRAMS:
        print(generate(program, options.out.absolute(), options.megatron.absolute()), flush=True)


if __name__ == "__main__":
    main()
