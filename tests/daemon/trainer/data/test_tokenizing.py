import json
from pathlib import Path

import pytest

from harness.launching import job, run
from zerotools.core.errors import BadRequest
from zerotools.runs import checkpoint_dirs
from zerotoolsd.trainer.data.corpus import PIECE_BYTES
from zerotoolsd.trainer.data.tokenizing import TokenFile, load_tokenizer, tokenize


class Letters:
    """A tokenizer of code points, which notes the texts that it was given."""

    eos_token_id: int | None = 0

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(self, text: str, *, add_special_tokens: bool, verbose: bool) -> dict[str, object]:
        assert not add_special_tokens
        self.texts.append(text)
        return {"input_ids": [ord(letter) for letter in text]}


def test_files_follow_each_other_with_an_end_of_text_between(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(f"{name}{name}\n")
    tokenize([tmp_path / "a", tmp_path / "b"], Letters(), tmp_path / "ids")
    tokens = TokenFile(tmp_path / "ids", vocabulary=256)
    (tmp_path / "ids").unlink()
    assert list(tokens.read(0, len(tokens))) == [97, 97, 10, 0, 98, 98, 10, 0]
    assert list(tokens.read(3, 5)) == [0, 98]


def test_text_goes_through_in_whole_lines(tmp_path: Path) -> None:
    line = "x" * 999 + "\n"
    text = line * (3 * PIECE_BYTES // len(line)) + "no newline"
    (tmp_path / "long").write_text(text)
    tokenizer = Letters()
    tokenize([tmp_path / "long"], tokenizer, tmp_path / "ids")
    assert "".join(tokenizer.texts) == text
    assert all(part.endswith("\n") for part in tokenizer.texts[:-1])
    assert max(map(len, tokenizer.texts)) <= PIECE_BYTES + len(line)


def test_a_tokenizer_that_is_not_there_is_named(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(BadRequest, match=r"data\.tokenizer: .*nowhere is not a directory"):
        load_tokenizer(tmp_path / "nowhere")


@pytest.mark.torch
def test_a_run_with_a_tokenizer_of_its_own(tmp_path: Path, text: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = sorted({word for line in text.read_text().splitlines() for word in line.split()})
    vocabulary = {word: number for number, word in enumerate(["<unk>", *words][:200])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    directory = tmp_path / "tokenizer"
    PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(directory)
    attempt = run(tmp_path / "run", job(text, ranks=2, data={"tokenizer": str(directory)}))
    losses = attempt.losses()
    assert losses[4] < losses[1]
    checkpoint = attempt.run_dir / "out" / checkpoint_dirs.directory_name(4)
    assert json.loads((checkpoint / "tokenizer.json").read_text())["model"]["vocab"] == vocabulary
    record = checkpoint_dirs.check(checkpoint)
    assert record.data is not None
    assert record.data.tokens == sum(len(line.split()) for line in text.read_text().splitlines())
