"""The small files of a model directory that belong to the model and not to its weights."""

from __future__ import annotations

import re
from pathlib import Path

CONFIG = "config.json"
_NAME = re.compile(
    r"config\.json|generation_config\.json|tokenizer[^/]*|vocab\.[^/]*|merges\.txt"
    r"|special_tokens_map\.json|added_tokens\.json|chat_template\.[^/]*|spiece\.model"
    r"|sentencepiece[^/]*|preprocessor_config\.json|processor_config\.json"
)


def companions(directory: Path) -> dict[str, Path]:
    """The config and tokenizer files in `directory`, by name."""
    return {
        path.name: path
        for path in sorted(directory.iterdir())
        if _NAME.fullmatch(path.name) and path.is_file()
    }


def kind_of(name: str) -> str:
    """What a companion belongs to, so that files of two models are never mixed within one kind:
    `config`, `generation`, `processor`, or `tokenizer` for all the others."""
    if name == CONFIG:
        return "config"
    if name == "generation_config.json":
        return "generation"
    return "processor" if "processor_config" in name else "tokenizer"
