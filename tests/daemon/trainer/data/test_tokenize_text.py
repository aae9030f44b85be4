import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from harness.launching import job, run
from tests.daemon.trainer.finetuning import make_tokenizer
from zerotools.core.errors import BadFile, BadRequest
from zerotools.jobs.jobfile_tables.data import DataSpec
from zerotools.runs import find_job_checkpoints
from zerotoolsd.trainer.data.encoding.token_positions import TextIds
from zerotoolsd.trainer.data.token_stream import PIECE_BYTES, Piece, read_pieces, write_bytes
from zerotoolsd.trainer.data.tokenize_text import TokenFile, in_processes, load_tokenizer, tokenize


class Letters:
    """A tokenizer of code points, which notes the texts that it was given."""

    eos_token_id: int | None = 0
    is_fast = False

    def __init__(self) -> None:
        self.texts: list[str] = []

    def __call__(
        self, texts: list[str], *, add_special_tokens: bool, verbose: bool
    ) -> dict[str, object]:
        assert not add_special_tokens
        self.texts += texts
        return {"input_ids": [[ord(letter) for letter in text] for text in texts]}


def pieces(*paths: Path, **keys: Any) -> Iterator[Piece]:
    """The text of files that a job reads."""
    return (piece for path in paths for piece in read_pieces(path, DataSpec(**keys)))


def test_files_follow_each_other_with_an_end_of_text_between(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(f"{name}{name}\n")
    tokenize(pieces(tmp_path / "a", tmp_path / "b"), Letters(), tmp_path / "ids")
    tokens = TokenFile(tmp_path / "ids", vocabulary=256)
    (tmp_path / "ids").unlink()
    assert list(tokens.read(0, len(tokens))) == [97, 97, 10, 0, 98, 98, 10, 0]
    assert list(tokens.read(3, 5)) == [0, 98]


def test_text_goes_through_in_whole_lines(tmp_path: Path) -> None:
    line = "x" * 999 + "\n"
    text = line * (3 * PIECE_BYTES // len(line)) + "no newline"
    (tmp_path / "long").write_text(text)
    tokenizer = Letters()
    tokenize(pieces(tmp_path / "long"), tokenizer, tmp_path / "ids")
    assert "".join(tokenizer.texts) == text
    assert all(part.endswith("\n") for part in tokenizer.texts[:-2])
    assert max(map(len, tokenizer.texts)) <= PIECE_BYTES + len(line)


def test_documents_end_one_by_one_whatever_they_are_in(tmp_path: Path) -> None:
    rows = [{"text": "ab"}, {"text": ""}, {"text": "c"}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "b.txt").write_text(json.dumps(rows))
    (tmp_path / "c.csv").write_text('id,text\n1,"x\ny"\n2,z\n')
    (tmp_path / "d.txt").write_text("{plain}")
    paths = [tmp_path / name for name in ("a.jsonl", "b.txt", "c.csv", "d.txt")]
    tokenize(pieces(*paths), Letters(), tmp_path / "ids")
    read = bytes(TokenFile(tmp_path / "ids", 256).read(0, 99).astype("u1"))
    assert read == b"ab\0c\0ab\0c\0x\ny\0z\0{plain}\0"
    write_bytes(paths, DataSpec(), tmp_path / "bytes")
    assert (tmp_path / "bytes").read_bytes() == b"ab\nc\nab\nc\nx\ny\nz\n{plain}"
    off = "".join(piece.text for piece in pieces(paths[0], documents="off"))
    assert off == paths[0].read_text()


@pytest.mark.torch
def test_the_ids_are_those_of_the_tokenizers_own_call(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(make_tokenizer(tmp_path))
    texts = ["the red dress", "", "好看!\n" * 50, "</s> and <s>"]
    own = tokenizer(texts, add_special_tokens=False)["input_ids"]
    tokenizer(texts, truncation=True, max_length=2)  # which leaves the backend as it is set there
    assert [ids.tolist() for ids in TextIds(tokenizer).ids(texts)] == own


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
    checkpoint = attempt.run_dir / "out" / find_job_checkpoints.directory_name(4)
    assert json.loads((checkpoint / "tokenizer.json").read_text())["model"]["vocab"] == vocabulary
    record = find_job_checkpoints.verify_checkpoint_files(checkpoint)
    assert record.data is not None
    assert record.data.tokens == sum(len(line.split()) for line in text.read_text().splitlines())


class TwoWords(Exception):
    """An exception that pickle writes, and cannot read."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} {second}")


def make(home: int, what: str) -> Callable[[Sequence[int]], tuple[bool, list[int]]]:
    """What doubles numbers, and says whether it is at `home`."""

    def do(batch: Sequence[int]) -> tuple[bool, list[int]]:
        is_home = os.getpid() == home
        if 7 in batch and what == "killed" and not is_home:
            os.kill(os.getpid(), signal.SIGKILL)
        if 7 in batch and what == "refused":
            raise BadFile("seven")
        if 7 in batch and what == "not read by pickle":
            raise TwoWords("two", "words")
        return is_home, [2 * number for number in batch]

    return do


def results(what: str, ended: Callable[[int], None] = print) -> list[Any]:
    batches = [[n] for n in range(12)]
    return list(in_processes(batches, make, (os.getpid(), what), 2, ended=ended))


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[4]))


def test_results_come_in_order_and_from_other_processes() -> None:
    found = results("all")
    assert [numbers for _, numbers in found] == [[2 * n] for n in range(12)]
    assert found[0][0]  # the first batch, which each process is shown before it begins
    assert not any(is_home for is_home, _ in found[1:])


def test_what_a_killed_process_had_is_done_here() -> None:
    ended: list[int] = []
    found = results("killed", ended.append)
    assert [numbers for _, numbers in found] == [[2 * n] for n in range(12)]
    assert found[7][0]
    assert ended == [-signal.SIGKILL]


def test_what_a_batch_raises_comes_after_the_results_before_it() -> None:
    taken: list[list[int]] = []
    found = in_processes([[n] for n in range(12)], make, (0, "refused"), 2)
    with pytest.raises(BadFile, match="seven"):
        taken.extend(numbers for _, numbers in found)
    assert taken == [[2 * n] for n in range(7)]


def test_an_exception_that_pickle_does_not_read_is_raised_all_the_same() -> None:
    with pytest.raises(TwoWords, match="two words"):
        results("not read by pickle")


def test_where_no_process_can_be_started_all_is_done_here(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "executable", "/gone/python")
    found = results("all")
    assert [numbers for _, numbers in found] == [[2 * n] for n in range(12)]
    assert all(is_home for is_home, _ in found)


def test_no_process_is_left() -> None:
    before = {child.pid for child in psutil.Process().children()}  # of other tests
    found = in_processes([[n] for n in range(40)], make, (0, "all"), 2)
    next(found)
    next(found)
    assert {child.pid for child in psutil.Process().children()} - before
    found.close()  # type: ignore[attr-defined]
    assert not {child.pid for child in psutil.Process().children()} - before
