"""Tables of text: what csv writes is read, and every slip is named with its line."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zerotools.core.errors import BadFile
from zerotools.jobs.datafiles.csv_rows import read_rows

TEXTS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=20)


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
        (b"a,b\n1,2\n3\n", "a.csv, line 3: has 1 fields, and the header has 2"),
        (b"a,a\n1,2\n", 'a.csv: its header has the column "a" twice'),
        (b'a,b\n1,"2"x\n', "a.csv, line 2: is not CSV: "),
        (b'a,b\n1,"2\n', "is not CSV: unexpected end of data"),
        (b"a,b\n1,\xe9\n", "a.csv, line 2: is not UTF-8 (0xe9"),
        (b'a,b\n"\n",2\n' * 200_000 + b"1,\xe9", "a.csv, line 600001: is not UTF-8 (0xe9"),
        (b"\x1f\x8b\x08", "a.csv is compressed by gzip: unpack it"),
        ("a,b\n".encode("utf-16"), "a.csv is UTF-16: convert it"),
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
