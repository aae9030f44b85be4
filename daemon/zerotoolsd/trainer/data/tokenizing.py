"""Text through a Hugging Face tokenizer, once, into a file of token ids."""

from __future__ import annotations

import array
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from zerotools.core.errors import BadRequest
from zerotoolsd.trainer.data.corpus import text_pieces
from zerotoolsd.trainer.data.examplestore import ID_TYPE, mapped

TOKENIZER_FILES = (
    "added_tokens.json",
    "chat_template.jinja",
    "merges.txt",
    "special_tokens_map.json",
    "spiece.model",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
)


class TokenFile:
    """Token ids in a file, 32 bits each; its name may go while it is read."""

    def __init__(self, path: Path, vocabulary: int) -> None:
        self.vocabulary = vocabulary
        # an empty file cannot be mapped
        self._ids = mapped(path, ID_TYPE) if path.stat().st_size else memoryview(b"").cast(ID_TYPE)

    def __len__(self) -> int:
        return len(self._ids)

    def read(self, start: int, stop: int) -> Sequence[int]:
        """Tokens [start, stop)."""
        return self._ids[start:stop].tolist()


def load_tokenizer(directory: Path) -> Any:
    """The tokenizer in `directory`; code that comes with it is not run.

    Raises:
        BadRequest: there is none, or transformers cannot load it.
    """
    from transformers import AutoTokenizer  # only jobs with a tokenizer of their own pay for it

    if not directory.is_dir():
        raise BadRequest(f"data.tokenizer: {directory} is not a directory")
    try:
        return AutoTokenizer.from_pretrained(directory, trust_remote_code=False)
    except Exception as error:  # whatever a tokenizer of any kind raises over its files
        line = next(iter(str(error).strip().splitlines()), "")
        if not line or isinstance(error, LookupError):  # whose text is a bare key
            line = f"transformers cannot read its files ({type(error).__name__} {line})"
        raise BadRequest(f"data.tokenizer: {directory} cannot be loaded: {line}") from None


def tokenize(paths: Sequence[Path], tokenizer: Any, destination: Path) -> None:
    """Write the ids of all files to `destination`, each file followed by the end-of-text id.

    Text goes through in pieces of whole lines of about 1 MiB, so memory does not grow with it.
    """
    draft = destination.with_name(destination.name + ".draft")
    with draft.open("wb") as file:
        for path in paths:
            for text in _whole_lines(text_pieces(path)):
                ids = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
                array.array(ID_TYPE, ids).tofile(file)
            if tokenizer.eos_token_id is not None:
                array.array(ID_TYPE, [tokenizer.eos_token_id]).tofile(file)
    draft.replace(destination)


def copy_tokenizer(source: Path, destination: Path) -> None:
    """Put the tokenizer's files beside a checkpoint's config."""
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            shutil.copyfile(source / name, destination / name)


def _whole_lines(pieces: Iterator[str]) -> Iterator[str]:
    rest = ""
    for piece in pieces:
        head, newline, tail = (rest + piece).rpartition("\n")
        if newline:
            yield head + newline
        rest = tail
    if rest:
        yield rest
