"""Models and data that lie in a directory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from zerotools.jobs.memory_estimates.find_models_and_data import (
    FoundData,
    data_in,
    data_of,
    models_in,
)


def lines(path: Path, *rows: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def test_models_are_directories_with_a_config(tmp_path: Path) -> None:
    for name, text in (("b", '{"model_type": "llama"}'), ("a", "{}"), ("c", "["), ("d", "[1]")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    assert list(models_in(tmp_path)) == [tmp_path / "b"]
    assert list(models_in(tmp_path / "b")) == [tmp_path / "b"]
    (tmp_path / "z").mkdir()
    (tmp_path / "z" / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "z" / "model.safetensors").touch()
    assert list(models_in(tmp_path)) == [tmp_path / "z", tmp_path / "b"]


@pytest.mark.parametrize(
    ("row", "key"),
    [
        ({"messages": []}, "examples"),
        ({"conversations": []}, "examples"),
        ({"prompt": "", "response": "", "id": 1}, "examples"),
        ({"instruction": "", "output": ""}, "examples"),
        ({"text": ""}, "text"),
        ({"prompt": ""}, None),
        ([1], None),
        (3, None),
    ],
    ids=str,
)
def test_the_columns_say_what_lines_are(row: Any, key: str | None, tmp_path: Path) -> None:
    file = lines(tmp_path / "data.jsonl", row)
    talks = isinstance(row, dict) and not {"messages", "conversations"}.isdisjoint(row)
    assert data_of(file) == (None if key is None else FoundData(str(file), key, talks))


def test_arrays_and_tables_are_data_as_lines_are(tmp_path: Path) -> None:
    array = tmp_path / "alpaca.json"
    array.write_text(json.dumps([{"instruction": "a", "input": "", "output": "b"}] * 2, indent=1))
    table = tmp_path / "pairs.csv"
    table.write_text("prompt,chosen,rejected\na,b,c\n")
    assert data_of(array) == FoundData(str(array), "examples")
    assert data_of(table) == FoundData(str(table), "preferences")
    for name, text in (
        ("a.json", '{"name": "a"}'),
        ("b.json", "[1"),
        ("c.csv", ""),
        ("d.tsv", "a"),
    ):
        (tmp_path / name).write_text(text)
        assert data_of(tmp_path / name) is None


def test_examples_come_before_text(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "b.txt").write_text("text")
    file = lines(tmp_path / "sub" / "chat.jsonl", {"messages": []})
    found = list(data_in(tmp_path))
    assert found == [
        FoundData(str(file), "examples", True),
        FoundData(str(tmp_path / "*.txt"), "text"),
    ]


def test_what_belongs_to_a_model_is_no_data(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    (tmp_path / "LICENSE.txt").write_text("licence")
    assert list(data_in(tmp_path)) == []


def test_a_directory_is_its_files(tmp_path: Path) -> None:
    (tmp_path / "deeper").mkdir()
    assert data_of(tmp_path) is None
    (tmp_path / "a.txt").write_text("text")
    assert data_of(tmp_path) == FoundData(str(tmp_path / "*.txt"), "text")


def test_what_cannot_be_read_is_passed_over(tmp_path: Path) -> None:
    (tmp_path / "bad.jsonl").write_bytes(b"\xff\xfe\n")
    (tmp_path / "gone.jsonl").symlink_to(tmp_path / "nowhere")
    assert list(data_in(tmp_path)) == []
    assert list(models_in(tmp_path / "nowhere")) == []
