"""A run of LLaMA-Factory's own callback under the Trainer of transformers, which LLaMA-Factory's
trainers derive from: `python -m tests.golden.program_runs.llamafactory_rank`."""

from pathlib import Path

from .absent import pretend

pretend("trl", "datasets", "gradio", "fire", "omegaconf", "matplotlib", "av", "librosa")

import torch  # noqa: E402
from llamafactory.train.callbacks import LogCallback  # noqa: E402
from transformers import Trainer, TrainingArguments  # noqa: E402

from .ranks import tiny_llama, write_truth  # noqa: E402


def main() -> None:
    tokens = torch.arange(48).reshape(8, 6) % 19
    arguments = TrainingArguments(
        "run",
        max_steps=4,
        save_steps=2,
        logging_steps=1,
        per_device_train_batch_size=1,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
    )
    examples = [{"input_ids": row, "labels": row} for row in tokens]
    model = tiny_llama()
    Trainer(model, arguments, train_dataset=examples, callbacks=[LogCallback()]).train()
    write_truth({f"{name}|param": p.detach() for name, p in model.named_parameters()}, Path())


if __name__ == "__main__":
    main()
