"""One rank of ms-swift's own `swift sft`.

python -m tests.golden.program_runs.swift_rank lora|zero2
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch

RANK = os.environ["RANK"]
if os.environ["WORLD_SIZE"] == "1":
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE"):
        del os.environ[name]
os.environ["HF_DATASETS_CACHE"] = os.environ["MODELSCOPE_CACHE"] = f"{Path.cwd()}/cache-{RANK}"

from peft import get_peft_model_state_dict  # noqa: E402
from swift.pipelines import SwiftSft  # noqa: E402

from ..deepspeed_runs.launch import leave  # noqa: E402
from ..deepspeed_runs.truth import gather_tensors  # noqa: E402
from .inputs import write_examples, write_model  # noqa: E402
from .ranks import write_truth  # noqa: E402

TUNED = {
    "lora": ["--tuner_type", "lora"],
    "zero2": ["--tuner_type", "full", "--deepspeed", "zero2"],
}


class ToldSft(SwiftSft):
    """ms-swift's pipeline, which tells what its model holds in the end."""

    def train(self, trainer: Any) -> Any:
        done = super().train(trainer)
        if trainer.is_deepspeed_enabled:
            truth = gather_tensors(trainer.model_wrapped)
        else:
            adapter = get_peft_model_state_dict(trainer.model)
            truth = {f"{name}|param": tensor for name, tensor in adapter.items()}
        if trainer.args.process_index == 0:
            write_truth(truth, Path())
        return done


def main() -> None:
    torch.set_num_threads(1)
    inputs = Path(f"inputs-{RANK}").absolute()
    inputs.mkdir()
    write_model(inputs)
    write_examples(inputs / "examples.jsonl", "query", "response")
    options = {
        "model": inputs,
        "model_type": "llama",
        "template": "dummy",
        "dataset": inputs / "examples.jsonl",
        "torch_dtype": "bfloat16",
        "attn_impl": "eager",
        "output_dir": "output",
        "max_steps": 4,
        "save_steps": 2,
        "logging_steps": 1,
        "learning_rate": 0.01,
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 1,
        "max_length": 16,
        "report_to": "none",
        "use_cpu": "true",
        "use_hf": "true",
    }
    given = [text for key, value in options.items() for text in (f"--{key}", str(value))]
    ToldSft([*given, *TUNED[sys.argv[1]]]).main()
    leave()


if __name__ == "__main__":
    main()
