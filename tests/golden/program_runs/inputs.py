"""What the programs are told to train: a model directory and a file of examples."""

import json
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from .ranks import tiny_llama

EXAMPLES = 8
_END, _UNKNOWN = "</s>", "<unk>"


def write_model(directory: Path) -> None:
    """A Llama with 19 words, and the tokenizer that knows them."""
    words = [_UNKNOWN, _END, *(f"w{number}" for number in range(17))]
    model = models.WordLevel({word: at for at, word in enumerate(words)}, unk_token=_UNKNOWN)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tiny_llama().save_pretrained(directory)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=_END, unk_token=_UNKNOWN, pad_token=_END
    ).save_pretrained(directory)


def write_examples(file: Path, question: str, answer: str) -> None:
    """Lines of JSON, with three words in each of two fields."""
    lines = [
        {
            question: " ".join(f"w{(row + word) % 17}" for word in range(3)),
            answer: " ".join(f"w{(row * word) % 17}" for word in range(3)),
        }
        for row in range(EXAMPLES)
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
