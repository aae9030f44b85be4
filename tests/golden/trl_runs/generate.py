"""DPO by TRL on a tiny model: a golden case for DPO by a job.

    python -m tests.golden.trl_runs.generate OUT

Run it in an environment with trl (1.16) and its torch, from the root of the repository. Writes
OUT/model (weights, config, tokenizer), OUT/preferences.jsonl, and OUT/truth.json: what TRL's
trainer logged for each step.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "daemon"))

from zerotoolsd.trainer.data.shuffle import Shuffle

SEED, PAIRS, BATCH, STEPS, BETA, RATE = 7, 18, 6, 6, 0.2, 5e-3
MODEL = {
    "vocab_size": 259,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 64,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
SETTING = {"seed": SEED, "batch_size": BATCH, "steps": STEPS, "beta": BETA, "learning_rate": RATE}


def preferences() -> Iterator[dict[str, str]]:
    """Sums: right ones are chosen."""
    numbers = random.Random(1)
    for _ in range(PAIRS):
        one, other = numbers.randrange(50), numbers.randrange(50)
        wrong = one + other + numbers.randrange(1, 9)
        yield {
            "prompt": f"{one}+{other}=",
            "chosen": f"{one + other}",
            "rejected": f"{wrong}, I think",
        }


def make_model(directory: Path) -> None:
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    special = ["<pad>", "<s>", "</s>"]
    letters = [*special, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    backend = Tokenizer(models.BPE({letter: n for n, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    tokenizer.save_pretrained(directory)
    torch.manual_seed(SEED)
    LlamaForCausalLM(LlamaConfig(**MODEL)).save_pretrained(directory)


def train(directory: Path, rows: list[dict[str, str]], scratch: Path) -> list[dict[str, Any]]:
    """What TRL logs of each step."""
    from datasets import Dataset
    from torch.utils.data import SequentialSampler
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import DPOConfig, DPOTrainer

    class InOrder(DPOTrainer):
        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            return SequentialSampler(train_dataset or self.train_dataset)

    config = DPOConfig(
        output_dir=str(scratch),
        per_device_train_batch_size=BATCH,
        max_steps=STEPS,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        adam_beta2=0.95,
        weight_decay=0.1,
        max_grad_norm=1.0,
        beta=BETA,
        max_length=None,
        precompute_ref_log_probs=True,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
    )
    trainer = InOrder(
        model=AutoModelForCausalLM.from_pretrained(directory),
        args=config,
        train_dataset=Dataset.from_list(rows),
        processing_class=AutoTokenizer.from_pretrained(directory),
    )
    trainer.train()
    return [each for each in trainer.state.log_history if "loss" in each]


def in_order(rows: list[dict[str, str]]) -> list[dict[str, str]]:
    """The pairs of all steps, as a job of `SEED` takes them."""
    found = []
    for position in range(BATCH * STEPS):
        epoch, index = divmod(position, len(rows))
        found.append(rows[Shuffle(len(rows), seed=SEED, epoch=epoch)[index]])
    return found


def main(out: Path) -> None:
    """Write the case to `out`."""
    import trl

    rows = list(preferences())
    out.mkdir(parents=True)
    (out / "preferences.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    make_model(out / "model")
    logged = train(out / "model", in_order(rows), out / "scratch")
    truth = {"trl": trl.__version__, **SETTING, "logged": logged}
    (out / "truth.json").write_text(json.dumps(truth, indent=1) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
