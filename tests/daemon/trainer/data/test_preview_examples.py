"""What is said at submit of the first examples: what is cut, and what ranks would refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from harness.launching import TINY_LLAMA, job
from tests.daemon.trainer.finetuning import TEMPLATE, VOCABULARY, load, make_tokenizer, write_lines
from zerotools.core.errors import BadFile, BadRequest
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotoolsd.service.admission.interpreter_check import LONGEST_ANSWER
from zerotoolsd.trainer.data.encode_examples import ModelInput
from zerotoolsd.trainer.data.encoding.encoded_example import LEARNED, Encoded
from zerotoolsd.trainer.data.preview_examples import (
    MAX_EXAMPLES,
    MOST_BYTES,
    SampleView,
    json_bytes,
    sample_data,
)

pytestmark = pytest.mark.torch
READER = ModelInput(encoder_decoder=False, positions=64)


def fits(vocabulary: int) -> None:
    """As a model with an embedding for each of the tokenizer's ids."""
    if vocabulary > VOCABULARY:
        raise BadRequest(f"{vocabulary} is too many")


def spec(folder: Path, rows: list[dict[str, Any]], **data: Any) -> JobSpec:
    path = write_lines(folder / "a.jsonl", rows)
    tokenizer = make_tokenizer(folder / "tokenizer", template=data.pop("template", None))
    keys = {"text": [], "examples": [str(path)], "tokenizer": str(tokenizer), **data}
    tree = job(Path("/t"), model={"config": TINY_LLAMA}, data=keys)
    return job_from_dict(tree, source="job")


def test_what_is_cut_is_counted_and_said(tmp_path: Path) -> None:
    short, long = {"prompt": "ab", "response": "cd"}, {"prompt": "01" * 50, "response": "23" * 20}
    rows = [short, long, short]
    assert sample_data(spec(tmp_path, [short] * 3), READER, fits).notes == []
    # <s> and 100 letters, 40 letters and </s>; a model of 64 positions learns from 65 tokens.
    [note] = sample_data(spec(tmp_path, rows), READER, fits).notes
    assert note == (
        "data.examples, first examples: 1 example of 3 cut to the model's 64 positions, "
        "which loses 77 tokens (77 of prompts)"
    )
    [note] = sample_data(spec(tmp_path, rows, sequence_length=30), READER, fits).notes
    assert note.endswith(
        "cut to data.sequence_length = 30, which loses 111 tokens (100 of prompts, 11 of responses)"
    )
    [note] = sample_data(spec(tmp_path, [*[short] * MAX_EXAMPLES, long]), READER, fits).notes or [
        ""
    ]
    assert note == ""


def test_what_the_ranks_would_refuse_is_refused(tmp_path: Path) -> None:
    asked = {"role": "user", "content": "a"}
    with pytest.raises(BadFile, match=r"a\.jsonl, line 1: the conversation has no turn of the as"):
        sample_data(spec(tmp_path, [{"messages": [asked]}]), READER, fits)
    turns = [asked, {"role": "assistant", "content": "b"}]
    with pytest.raises(BadRequest, match=r"line 1: is a conversation, but no chat template"):
        sample_data(spec(tmp_path, [{"messages": turns}]), READER, fits)
    broken = TEMPLATE + "{{ raise_exception('no') }}"
    with pytest.raises(BadFile, match=r"line 1: the tokenizer's chat template rejects it: no"):
        sample_data(spec(tmp_path, [{"messages": turns}], template=broken), READER, fits)
    folder = tmp_path / "added"
    folder.mkdir()
    added = spec(folder, [{"prompt": "a", "response": "<new>"}])
    tokenizer = load(folder / "tokenizer")
    tokenizer.add_tokens(["<new>"])
    tokenizer.save_pretrained(folder / "tokenizer")
    with pytest.raises(BadRequest, match=f"{VOCABULARY + 1} is too many"):
        sample_data(added, READER, fits)
    limitless = ModelInput(encoder_decoder=False, positions=None)
    with pytest.raises(BadRequest, match=r"data\.packing = true: data\.sequence_length is missing"):
        sample_data(spec(tmp_path, [{"messages": turns}], packing=True), limitless, fits)


def test_a_parquet_file_without_the_column_is_refused(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.Table.from_pylist([{"body": "a"}]), path)
    text = job_from_dict(job(path), source="job")
    with pytest.raises(BadFile, match=r'a\.parquet: has no column "text"; it has body'):
        sample_data(text, READER, fits)
    tokenizer = str(make_tokenizer(tmp_path / "tokenizer"))
    keys = {"text": [], "examples": [str(path)], "tokenizer": tokenizer}
    with pytest.raises(BadFile, match=r'row 1: has no column "prompt" \(data\.prompt_column'):
        sample_data(job_from_dict(job(path, data=keys), source="job"), READER, fits)
    parquet.write_table(pyarrow.table({"prompt": pyarrow.array([], pyarrow.string())}), path)
    with pytest.raises(BadRequest, match=r"a\.parquet: contains no examples"):
        sample_data(job_from_dict(job(path, data=keys), source="job"), READER, fits)


def test_examples_are_shown_as_the_model_sees_them(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "cd"}]
    rows = [{"messages": turns}, {"messages": turns}, {"messages": [*turns, *turns]}]
    asked = spec(tmp_path, rows, template=TEMPLATE)
    view = sample_data(asked, READER, fits, show=2).view
    assert view is not None
    first, second = view["examples"]
    assert first["parts"] == [
        {"text": "<|user|>ab<|end|><|assistant|>", "trained": False},
        {"text": "cd<|end|>", "trained": True},
    ]
    assert first["place"].endswith("a.jsonl, line 1")
    assert 0 < first["trained_tokens"] < first["tokens"]
    assert (view["looked_at"], view["duplicates"], view["empty"]) == (3, 1, 0)
    assert [view["lengths"][0][2], view["lengths"][-1][2]] == [2, 1]
    assert second["parts"] == first["parts"]
    assert sample_data(asked, READER, fits).view is None


def test_text_and_preferences_are_shown_and_what_an_epoch_comes_to(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abcdefgh" * 12)
    keys = {"text": [str(tmp_path / "*.txt")], "sequence_length": 32}
    on_text = job_from_dict(job(tmp_path, data=keys, train={"batch_size": 2}), source="job")
    view = sample_data(on_text, READER, fits, show=1).view
    assert view is not None
    [shown] = view["examples"]
    assert shown["parts"] == [{"text": "abcdefgh" * 4, "trained": True}]
    assert view["epoch"] == {"tokens": 96, "sequences": 3, "steps": 2, "operations": None}
    rows = [{"prompt": "ab", "chosen": "c", "rejected": "defg"}] * 2
    path = write_lines(tmp_path / "a.jsonl", rows)
    tokenizer = str(make_tokenizer(tmp_path / "tokenizer"))
    keys = {"text": [], "preferences": [str(path)], "tokenizer": tokenizer}
    tree = job(tmp_path, model={"config": TINY_LLAMA}, data=keys)
    del tree["data"]["sequence_length"]  # which is for text
    pairs = job_from_dict(tree, source="job")
    view = sample_data(pairs, READER, fits, show=2).view
    assert view is not None
    assert [each["place"].rpartition(", ")[2] for each in view["examples"]] == [
        "chosen",
        "rejected",
    ]
    assert view["epoch"]["sequences"] == 2


def epoch_of(directory: Path, patterns: list[str]) -> dict[str, int] | None:
    data = {"text": [str(directory / each) for each in patterns], "sequence_length": 32}
    asked = job_from_dict(job(directory, data=data, train={"batch_size": 2}), source="job")
    view = sample_data(asked, READER, fits, show=1).view
    assert view is not None
    epoch: dict[str, int] | None = view["epoch"]
    return epoch


def test_the_epoch_of_many_small_texts_has_them_all(tmp_path: Path) -> None:
    for number in range(40):
        (tmp_path / f"{number:02}.txt").write_text("abcdefgh" * 2)
    epoch = epoch_of(tmp_path, ["*.txt"])
    assert epoch is not None
    assert (epoch["tokens"], epoch["sequences"]) == (640, 20)
    assert epoch_of(tmp_path, ["*.txt", "**/*.txt"]) is None  # how many files is not known


def test_the_epoch_of_a_large_text_counts_only_what_was_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(("abcdefg\n" * (1 << 17)) * 5)
    epoch = epoch_of(tmp_path, ["a.txt"])
    assert epoch is not None
    assert epoch["tokens"] == pytest.approx(5 << 20, rel=0.001)


def test_the_epoch_of_an_array_of_json_has_all_its_examples(tmp_path: Path) -> None:
    rows = [{"prompt": "ab", "response": "cd"}] * 5000
    asked = spec(tmp_path, rows)
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(rows))
    view = sample_data(asked, READER, fits, show=1).view
    assert view is not None
    assert view["looked_at"] == 2000
    assert view["epoch"]["sequences"] == pytest.approx(5000, rel=0.001)


def test_packed_sequences_are_counted(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "ab"}, {"role": "assistant", "content": "cd"}]
    rows = [{"messages": turns}] * 8
    asked = spec(tmp_path, rows, template=TEMPLATE, packing=True, sequence_length=32)
    view = sample_data(asked, READER, fits, show=1).view
    assert view is not None
    size = view["examples"][0]["tokens"] - 1
    each = 32 // size
    assert view["packed"]["sequences"] == view["epoch"]["sequences"] == -(-8 // each)
    assert view["packed"]["filled"] == pytest.approx(8 * size / (32 * -(-8 // each)), rel=0.2)


ROOM_FOR_NOTES = 16_000
TEXTS = {
    "English": "word ",
    "Chinese": "中文模型",
    "emoji": "🙂🙃",
    "control": "\x01\x02",
    "quotes": '"\\\n',
    "one side of a pair": "\ud83d",
    "nothing": "",
}


def of_turns(text: str, turns: int, place: str = "a.jsonl, line 1") -> tuple[SampleView, Encoded]:
    """An example in which every other token is trained, each of which is this text."""
    marked = np.arange(turns, dtype=np.uint32)
    marked[1::2] |= LEARNED
    return SampleView(20, lambda ids: text * len(ids)), Encoded(place, marked, 0)


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
@pytest.mark.parametrize("turns", [3, 2000])
def test_an_answer_has_room_for_all_that_is_shown(text: str, turns: int) -> None:
    view, example = of_turns(text * 3000, turns, place="/目录" * 1000 + "/a.jsonl, line 1")
    for _ in range(20):
        view.add(example)
    answer = view.answer(0)
    assert json_bytes(answer["examples"]) < LONGEST_ANSWER - ROOM_FOR_NOTES
    assert len(answer["examples"]) == 20
    assert all(each["text_cut"] or not text for each in answer["examples"][:1])


def test_what_fits_is_shown_whole() -> None:
    view, example = of_turns("中文", 6)
    view.add(example)
    (shown,) = view.answer(0)["examples"]
    assert (shown["place"], shown["text_cut"]) == ("a.jsonl, line 1", False)
    assert [part["text"] for part in shown["parts"]] == ["中文"] * 6
    assert [part["trained"] for part in shown["parts"]] == [False, True] * 3


def test_one_long_example_is_cut_where_the_room_ends() -> None:
    view = SampleView(1, lambda ids: "中" * len(ids))
    view.add(Encoded("a", np.full(50_000, 7, np.uint32), 0))
    (shown,) = view.answer(0)["examples"]
    (part,) = shown["parts"]
    assert shown["text_cut"]
    assert MOST_BYTES - 100 < len(json.dumps(part, ensure_ascii=False).encode()) <= MOST_BYTES
    assert shown["tokens"] == 50_000
