"""Megatron-Bridge exports a `torch_dist` checkpoint of a dense model on one rank, to be timed.

    PYTHONPATH=.:DIR python -m tests.megatron_runs.bridge_export CHECKPOINT MODEL OUT

CHECKPOINT is a directory of one iteration in bf16, MODEL has config.json, OUT gets safetensors.
Megatron-Core's loader reads it into a model of Bridge's; Bridge takes it apart and writes it.
"""

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from . import stand_ins

stand_ins.install()
import torch.distributed as dist  # noqa: E402
from megatron.bridge import AutoBridge  # noqa: E402
from megatron.core import dist_checkpointing  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

from harness.ports import free_port  # noqa: E402

from .bridged_cases import Bridged  # noqa: E402
from .bridged_models import of_bridge  # noqa: E402


def sparse_model(said: dict[str, Any], where: Path) -> None:
    """A directory of the Hub whose weights are a hole in a file: Bridge takes names from it."""
    config = AutoConfig.for_model(**said, dtype=torch.bfloat16)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    config.architectures = [type(model).__name__]
    config.save_pretrained(where)
    header, end = {}, 0
    for name, value in model.state_dict().items():
        size = 2 * value.numel()
        header[name] = {"dtype": "BF16", "shape": [*value.shape], "data_offsets": [end, end + size]}
        end += size
    words = json.dumps(header).encode()
    with (where / "model.safetensors").open("wb") as file:
        file.write(len(words).to_bytes(8, "little") + words)
        file.truncate(8 + len(words) + end)


def main() -> None:
    source, hub, out = (Path(word).absolute() for word in sys.argv[1:])
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    dist.init_process_group("gloo", rank=0, world_size=1)
    said = json.loads((hub / "config.json").read_text())
    with tempfile.TemporaryDirectory() as named:
        sparse_model(said, Path(named))
        bridge = AutoBridge.from_hf_pretrained(named)
        case = Bridged("large", said, tp=1)
        (model,) = of_bridge(bridge, case, torch.bfloat16, load_weights=False)
        whole = model.sharded_state_dict()
        weights = {key: value for key, value in whole.items() if not key.endswith("_extra_state")}
        loaded = dist_checkpointing.load({"model": weights}, str(source))
        model.load_state_dict(loaded["model"], strict=False)
        del loaded, whole, weights
        out.mkdir(parents=True)
        bridge.save_hf_weights([model], out, show_progress=False)
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
