"""What all programs train: the same weights, examples in the same order, the same schedule.

The order is asked of our trainer (`Shuffle`), and given to the others as a data set to be read from
the beginning. All else is written down here once more.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from zerotoolsd.trainer.data.shuffle import Shuffle

SEED = 11
VOCABULARY = 400
STEPS, BATCH, MICRO = 40, 8, 4
EXAMPLES, WINDOW = 90, 32
RATE, WARMUP = 3e-3, 4
BETAS, EPS, DECAY, CLIP = (0.9, 0.95), 1e-8, 0.1, 1.0
IGNORED = -100

_COMMON = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "head_dim": 16,
}
_STILL = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
MODELS: dict[str, dict[str, Any]] = {
    "llama": _COMMON,
    "gemma2": {**_COMMON, "query_pre_attn_scalar": 16},
    "gpt2": {"vocab_size": VOCABULARY, "n_embd": 64, "n_layer": 2, "n_head": 4, **_STILL},
}
"""A plain one, one that bounds its logits, and one with a tied head and biases."""


@dataclass(frozen=True)
class Setting:
    """Where the model of a kind and the data lie."""

    model: Path
    examples: Path
    text: Path


def make(directory: Path, kind: str) -> Setting:
    """Write model, tokenizer and data to `directory`."""
    from transformers import AutoConfig, AutoModelForCausalLM

    directory.mkdir(parents=True)
    torch.manual_seed(SEED)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **MODELS[kind]))
    model.save_pretrained(directory / "model")
    _make_tokenizer(directory / "model")
    rows = [
        {
            "prompt": f"What is {number} times {number % 7}" + ", please" * (number % 3) + "?",
            "response": f" It is {number * (number % 7)}" + ", of course" * (number % 4),
        }
        for number in range(EXAMPLES)
    ]
    examples, text = directory / "examples.jsonl", directory / "text.txt"
    examples.write_text("".join(json.dumps(row) + "\n" for row in rows))
    text.write_text("".join(f"{n} sheep, {n * 7 % 13} of them black.\n" for n in range(400)))
    return Setting(directory / "model", examples, text)


def _make_tokenizer(directory: Path) -> None:
    """Pieces of words of the standard library's own text, begun by `<s>` and ended by `</s>`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<pad>", "<s>", "</s>"]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([json.__doc__ or "", tempfile.__doc__ or ""], trainer)
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    names = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    PreTrainedTokenizerFast(tokenizer_object=backend, **names).save_pretrained(directory)


def ordered(count: int) -> list[int]:
    """The numbers of the examples of all steps, in order."""
    positions = (divmod(place, count) for place in range(STEPS * BATCH))
    return [Shuffle(count, seed=SEED, epoch=epoch)[place] for epoch, place in positions]


def rate_factor(step: int) -> float:
    """The part of `RATE` that step `step` has, counted from 0: up in a line, then down to 0."""
    if step < WARMUP:
        return step / WARMUP
    return max(0.0, 1.0 - (step - WARMUP) / (STEPS - WARMUP))


def load_model(setting: Setting) -> Any:
    """The model, to be trained in fp32 on this process's CPU."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(setting.model, dtype=torch.float32)
    return model.train()


def texts_of(setting: Setting) -> list[dict[str, str]]:
    """The examples in the order of training, as text."""
    rows = [json.loads(line) for line in setting.examples.read_text().splitlines()]
    return [rows[number] for number in ordered(len(rows))]


Row = tuple[list[int], list[int]]
"""Token ids, and the same where they count in the loss, else `IGNORED`."""


def examples_of(setting: Setting) -> list[Row]:
    """The examples in the order of training, without the prompts in the loss."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(setting.model)

    def row(text: dict[str, str]) -> Row:
        prompt = tokenizer(text["prompt"])["input_ids"]
        said = tokenizer(text["response"], add_special_tokens=False)["input_ids"]
        answer = [*said, tokenizer.eos_token_id]
        return [*prompt, *answer], [*[IGNORED] * len(prompt), *answer]

    return [row(text) for text in texts_of(setting)]


def windows_of(setting: Setting) -> list[Row]:
    """Windows of bytes of the text in the order of training; all count but the first of each."""
    data = list(setting.text.read_bytes())
    count = (len(data) - 1) // WINDOW
    found = [data[number * WINDOW : (number + 1) * WINDOW + 1] for number in ordered(count)]
    # The first, which nothing predicts, would be counted by the Trainer for some models.
    return [(ids, [IGNORED, *ids[1:]]) for ids in found]


TASKS: dict[str, Callable[[Setting], list[Row]]] = {"text": windows_of, "examples": examples_of}


def filled(rows: list[Row]) -> dict[str, torch.Tensor]:
    """`rows` as a batch, filled up on the right."""
    longest = max(len(ids) for ids, _ in rows)
    ids = [[*row, *[0] * (longest - len(row))] for row, _ in rows]
    labels = [[*row, *[IGNORED] * (longest - len(row))] for _, row in rows]
    mask = [[*[1] * len(row), *[0] * (longest - len(row))] for row, _ in rows]
    return {
        "input_ids": torch.tensor(ids),
        "labels": torch.tensor(labels),
        "attention_mask": torch.tensor(mask),
    }
