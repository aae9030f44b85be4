"""Files of examples: both forms give the same, and every slip is named with its file and line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerotools.core.errors import BadFile
from zerotools.jobs.datafiles import json_objects
from zerotools.jobs.datafiles.examples_and_documents import (
    TextExample,
    read_examples,
    read_records_of,
)
from zerotools.jobs.datafiles.json_objects import PIECE, read_objects
from zerotools.jobs.jobfile_tables.data import DataSpec

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
TREES = st.lists(st.dictionaries(TEXTS, TEXTS | st.integers() | st.lists(TEXTS), max_size=3))


GOOD = '{"prompt": "a", "response": "b"}\n'


def read(path: Path, budget: int | None = None, **keys: Any) -> list[TextExample]:
    return list(read_examples(path, DataSpec(**keys), budget))


def refusal(path: Path, content: str | bytes, **keys: Any) -> str:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    with pytest.raises(BadFile) as info:
        read(path, **keys)
    return str(info.value).removeprefix(str(path))


@given(trees=TREES, indent=st.sampled_from([None, 1]), bom=st.booleans())
def test_lines_and_arrays_give_what_json_gives(
    trees: list[dict[str, Any]],
    indent: int | None,
    bom: bool,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("forms")
    start = "\ufeff" if bom else ""
    lines = start + "".join(json.dumps(tree, ensure_ascii=False) + "\r\n\n" for tree in trees)
    (folder / "lines").write_text(lines, "utf-8", newline="")
    (folder / "array").write_text(start + " " + json.dumps(trees, indent=indent), "utf-8")
    found = list(read_objects(folder / "lines"))
    assert found == [(2 * number + 1, tree) for number, tree in enumerate(trees)]
    assert [tree for _, tree in read_objects(folder / "array")] == trees


def test_an_array_goes_on_over_many_pieces(tmp_path: Path) -> None:
    rows = [{"prompt": "é" * 70_000, "response": str(number)} for number in range(40)]
    path = tmp_path / "long.json"
    path.write_text(json.dumps(rows, ensure_ascii=False, indent=0), "utf-8")
    assert path.stat().st_size > 4 * PIECE
    records = read(path)
    assert [record.response for record in records] == [row["response"] for row in rows]
    assert records[2].place == f"{path}, line {2 + 2 * 4}"


def test_a_value_of_many_pieces_is_parsed_a_few_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    called: list[str] = []
    monkeypatch.setattr(json_objects, "PIECE", 64)
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"prompt": "a" * 6400, "response": "b"}]))
    sys.setprofile(lambda frame, event, _: called.append(f"{event} {frame.f_code.co_name}"))
    try:
        found = read(path)
    finally:
        sys.setprofile(None)
    assert [len(record.prompt) for record in found] == [6400]
    assert called.count("call raw_decode") < 10


def test_columns_by_their_names_and_a_history(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    row = {"q": "c", "a": "d", "h": [["a", "b"]], "more": 1}
    path.write_text(json.dumps(row) + "\n" + json.dumps({"q": None, "a": "", "h": None}))
    first, second = read(path, prompt_column="q", response_column="a", history_column="h")
    assert first == TextExample(f"{path}, line 1", "c", "d", (("a", "b"),))
    assert second.is_empty
    assert not first.is_empty


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (GOOD + '{"prompt": "a",\n', ", line 2: is not JSON: Expecting property name"),
        ('{\n "prompt": "a"\n}', ", line 1: is not JSON: Expecting property name"),
        (GOOD + GOOD.encode().decode() + "[1]\n", ", line 3: is a list, not an object"),
        (GOOD.encode() + b'{"prompt": "\xe9"}', ", line 2: is not UTF-8 (0xe9"),
        (GOOD + '{"q": 1, "a": 2}', 'line 2: has no column "prompt" (data.prompt_column); '),
        (GOOD + '{"q": 1, "a": 2}', "it has q, a"),
        ('{"prompt": "a"}', 'has no column "response" (data.response_column); it has prompt'),
        ('{"prompt": 3, "response": "b"}', '"prompt" is a number, not text'),
        (
            '{"prompt": "a", "response": "\\ud83d"}',
            r'"response" has \ud83d, which is only half of '
            "a character",
        ),
        ("[" * 100_000, ", line 1: is not JSON"),
        (f"[\n{GOOD},\n{GOOD}", ", line 5: the array is not closed"),
        (f"[\n{GOOD}{GOOD}]", ", line 3: a comma is missing between two examples"),
        (f"[\n{GOOD},]", ", line 3: no example follows the comma"),
        (f"[{GOOD}] []", ", line 2: something follows the array"),
        (f'[\n{GOOD},\n{{"prompt": oops}}]', ", line 4: is not JSON: Expecting value"),
        (
            f'[\n{GOOD},\n  {{"prompt": "a',
            "line 4: is not JSON: Unterminated string starting at column 14",
        ),
        (f"[\n{GOOD},\n3]", ", line 4: is a number, not an object"),
        (b"[\n" + GOOD.encode() + b',\n"\xff"]', ", line 4: is not UTF-8 (0xff"),
        (b"PAR1\x15\x04\n", "is Parquet; give it a name that ends in .parquet"),
        (b"PK\3\4\n", "is a zip archive; unpack it (unzip)"),
    ],
)
def test_a_slip_is_named_with_its_line(tmp_path: Path, content: str | bytes, sentence: str) -> None:
    assert sentence in refusal(tmp_path / "data.json", content)


@pytest.mark.parametrize(
    ("history", "sentence"),
    [
        ("a", '"history" is text, not a list'),
        ([["a", "b"], ["c"]], '"history": turn 2 is not a pair'),
        ([["a", 1]], '"history" is a number, not text'),
    ],
)
def test_a_history_of_another_form_is_refused(
    tmp_path: Path, history: object, sentence: str
) -> None:
    row = {"prompt": "a", "response": "b", "history": history}
    assert sentence in refusal(tmp_path / "a", json.dumps(row), history_column="history")


@pytest.mark.parametrize("form", ["lines", "array"])
def test_a_budget_ends_in_silence(tmp_path: Path, form: str) -> None:
    path = tmp_path / "a.json"
    text = GOOD * 9 if form == "lines" else "[" + ",".join([GOOD] * 9) + "]"
    path.write_text(text + "broken")
    seen = {len(read(path, budget=budget)) for budget in range(1, len(text), 7)}
    assert seen <= set(range(10))
    assert {1, 7} <= seen
    with pytest.raises(BadFile):
        read(path)


def test_a_file_that_is_not_there_or_closed_is_named(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"nowhere cannot be read: No such file"):
        read(tmp_path / "nowhere")


def preferences(path: Path, *rows: Any) -> list[Any]:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return list(read_records_of(path, DataSpec(preferences=(str(path),))))


def test_a_preference_is_its_chosen_and_then_its_rejected_answer(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    found = preferences(path, {"prompt": "p", "chosen": "c", "rejected": "r"})
    assert [(each.prompt, each.response) for each in found] == [("p", "c"), ("p", "r")]
    user, good, bad = (
        {"role": role, "content": text}
        for role, text in (("user", "p"), ("assistant", "c"), ("assistant", "r"))
    )
    for prompt in ([user], "p"):
        turns = preferences(path, {"prompt": prompt, "chosen": [good], "rejected": [bad]})
        assert [each.turns for each in turns] == [(user, good), (user, bad)]
        assert {each.learned for each in turns} == {(False, True)}


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (
            {"prompt": "p", "chosen": "c"},
            ', line 2: has no column "rejected" (data.rejected_column); it has prompt, chosen',
        ),
        (
            {"prompt": "p", "chosen": "c", "rejected": ""},
            ', line 2: "rejected" is empty, but a preference needs a prompt, a chosen and a '
            "rejected "
            "answer; write the missing text, or remove the line",
        ),
        ({"prompt": "p", "chosen": "c", "rejected": None}, ', line 2: "rejected" is empty,'),
        ({"prompt": "", "chosen": "c", "rejected": "r"}, ', line 2: "prompt" is empty'),
        (
            {"prompt": "p", "chosen": "c", "rejected": 3},
            ', line 2: "rejected" is a number, not text',
        ),
        (
            {"prompt": "p", "chosen": "c", "rejected": [{"role": "user", "content": "r"}]},
            ', line 2: "rejected": the conversation has no turn of the assistant',
        ),
        (
            {
                "prompt": [{"role": "assistant", "content": "p"}],
                "chosen": "c",
                "rejected": [{"role": "user", "content": "r"}],
            },
            ', line 2: "prompt" is a list, not text',
        ),
        (
            {
                "prompt": [{"role": "assistant", "content": "p"}],
                "chosen": [{"role": "assistant", "content": "c"}],
                "rejected": [{"role": "user", "content": "r"}],
            },
            ', line 2: "rejected" does not end with an answer of the assistant',
        ),
        ({"prompt": "p", "chosen": "c", "rejected": []}, ', line 2: "rejected"'),
        ("text", ", line 2: is text, not an object"),
    ],
)
def test_a_preference_without_an_answer_is_named_with_its_line(
    tmp_path: Path, row: Any, said: str
) -> None:
    path = tmp_path / "pairs.jsonl"
    with pytest.raises(BadFile) as info:
        preferences(path, {"prompt": "p", "chosen": "c", "rejected": "r"}, row)
    assert str(info.value).removeprefix(str(path)).startswith(said)
