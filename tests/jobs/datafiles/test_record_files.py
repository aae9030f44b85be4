"""Tables of text: what csv writes is read, and every slip is named with its line."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerotools.core.errors import BadFile, BadRequest
from zerotools.jobs.datafiles.examples_and_documents import read_documents, read_examples
from zerotools.jobs.datafiles.record_files import read_columnar, read_rows, saved_files
from zerotools.jobs.jobfile_tables.data import DataSpec

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=20)


SAVED = Path(__file__).resolve().parents[2] / "golden" / "datasets-5.2.0"
ROWS = [
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
    {"messages": [{"role": "user", "content": "c"}, {"role": "assistant", "content": "d"}]},
]


@given(rows=st.lists(st.lists(TEXTS, min_size=2, max_size=2), max_size=6), tab=st.booleans())
def test_what_is_written_is_read(
    rows: list[list[str]], tab: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("csv") / ("a.tsv" if tab else "a.CSV")
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        writer = csv.writer(file, delimiter="\t" if tab else ",")
        writer.writerows([["prompt", "response"], *rows])
    found = [row for _, row in read_rows(path)]
    assert found == [{"prompt": a, "response": b} for a, b in rows]


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"a,b\n1,2\n3\n", "a.csv, line 3: has 1 fields, but the header has 2"),
        (b"a,a\n1,2\n", 'a.csv: its header has the column "a" twice'),
        (b'a,b\n1,"2"x\n', "a.csv, line 2: is not CSV: "),
        (b'a,b\n1,"2\n', "is not CSV: unexpected end of data"),
        (b"a,b\n1,\xe9\n", "a.csv, line 2: is not UTF-8 (0xe9"),
        (b'a,b\n"\n",2\n' * 200_000 + b"1,\xe9", "a.csv, line 600001: is not UTF-8 (0xe9"),
        (b"\x1f\x8b\x08", "a.csv is compressed by gzip; unpack it"),
        ("a,b\n".encode("utf-16"), "a.csv is UTF-16; convert it"),
    ],
)
def test_a_slip_is_named(tmp_path: Path, content: bytes, sentence: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(BadFile) as info:
        list(read_rows(path))
    assert sentence in str(info.value)


def test_a_budget_ends_in_silence(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('a,b\n1,"two\nlines"\n' * 3)
    seen = {len(list(read_rows(path, budget))) for budget in range(60)}
    assert max(seen) == 5  # the header stands there again, as rows
    with pytest.raises(BadFile, match=r"nowhere\.csv cannot be read"):
        list(read_rows(tmp_path / "nowhere.csv"))


@pytest.fixture
def pyarrow() -> Any:
    return pytest.importorskip("pyarrow")


def parquet(pyarrow: Any, path: Path, rows: list[dict[str, Any]]) -> Path:
    from pyarrow import parquet

    parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=2)
    return path


def test_parquet_gives_the_rows_of_json(pyarrow: Any, tmp_path: Path) -> None:
    path = parquet(pyarrow, tmp_path / "a.parquet", ROWS)
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    found = list(read_examples(path, DataSpec()))
    wanted = list(read_examples(tmp_path / "a.jsonl", DataSpec()))
    assert [example.turns for example in found] == [example.turns for example in wanted]
    assert found[1].place == f"{path}, row 2"


def test_documents_of_parquet_take_one_column(pyarrow: Any, tmp_path: Path) -> None:
    rows = [{"text": str(number), "id": number} for number in range(5)]
    path = parquet(pyarrow, tmp_path / "a.parquet", rows)
    assert list(read_documents(path, DataSpec())) == ["0", "1", "2", "3", "4"]
    assert next(iter(read_columnar(path, None, ("text",)))) == {"text": "0"}
    assert len(list(read_columnar(path, budget=1))) == 5
    with pytest.raises(BadFile, match=r'a\.parquet: has no column "body"; it has text, id'):
        list(read_documents(path, DataSpec(text_column="body")))


def test_arrow_files_of_both_kinds(pyarrow: Any, tmp_path: Path) -> None:
    table = pyarrow.Table.from_pylist(ROWS)
    for name, make in (("s", pyarrow.ipc.new_stream), ("f", pyarrow.ipc.new_file)):
        with make(str(tmp_path / f"{name}.arrow"), table.schema) as writer:
            writer.write_table(table)
        assert list(read_columnar(tmp_path / f"{name}.arrow")) == ROWS


def test_a_dataset_that_datasets_saved(pyarrow: Any) -> None:
    files = saved_files(SAVED / "train")
    assert files is not None
    assert [path.name for path in files] == [
        "data-00000-of-00002.arrow",
        "data-00001-of-00002.arrow",
    ]
    rows = [row for path in files for row in read_columnar(path)]
    assert rows == json.loads((SAVED / "truth.json").read_text())
    with pytest.raises(BadFile, match=r"with splits \(train, test\); name one of them, such as"):
        saved_files(SAVED)


def test_what_is_no_saved_dataset_or_not_whole(tmp_path: Path) -> None:
    assert saved_files(tmp_path) is None
    (tmp_path / "state.json").write_text('{"_data_files": [{"filename": "gone.arrow"}]}')
    with pytest.raises(BadFile, match=r"gone\.arrow is missing, but .*state\.json lists it"):
        saved_files(tmp_path)
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(BadFile, match=r"state\.json cannot be read as JSON; save the dataset"):
        saved_files(tmp_path)


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_what_is_damaged_is_named(pyarrow: Any, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"PAR1 and no more")
    with pytest.raises(BadFile, match=rf"{name}: cannot be read as {name[2:]}: "):
        list(read_columnar(tmp_path / name))
    with pytest.raises(BadFile, match=rf"gone\{name[1:]} cannot be read: "):
        list(read_columnar(tmp_path / f"gone{name[1:]}"))


def test_without_pyarrow_the_sentence_says_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        BadRequest,
        match=r"reading such files needs pyarrow, .*install 'pyarrow>=15'$",
    ):
        list(read_columnar(tmp_path / "a.parquet"))
