"""What fine-tuning tests need: a tokenizer made of the standard library's text, and examples."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

TEMPLATE = (
    "{% for turn in messages %}<|{{ turn.role }}|>{{ turn.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
VOCABULARY = 400


def make_tokenizer(directory: Path, *, template: str | None = None, seq2seq: bool = False) -> Path:
    """A byte-level BPE tokenizer with a first, a last and a filling token, in `directory`."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<pad>", "<s>", "</s>", "<|user|>", "<|assistant|>", "<|end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([json.__doc__ or "", random.__doc__ or ""], trainer)
    single = "$A </s>" if seq2seq else "<s> $A"
    backend.post_processor = processors.TemplateProcessing(
        single=single, special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    )
    tokenizer.chat_template = template
    tokenizer.save_pretrained(directory)
    return directory


def load(directory: Path) -> Any:
    """The tokenizer in `directory`, as a job loads it."""
    from zerotoolsd.trainer.data.tokenize_text import load_tokenizer

    return load_tokenizer(directory)


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    """`rows` as JSON Lines."""
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), "utf-8")
    return path


def adverts(count: int) -> list[dict[str, str]]:
    """Prompts and responses in Chinese, of various lengths, with something to learn."""
    colours = ["红", "蓝", "绿", "黑"]
    return [
        {
            "content": f"类型#裙*颜色#{colours[number % 4]}" + "*版型#宽松" * (number % 3),
            "summary": f"这条{colours[number % 4]}色的裙子" + "很好看" * (1 + number % 4),
        }
        for number in range(count)
    ]
