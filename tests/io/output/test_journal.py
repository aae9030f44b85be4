from __future__ import annotations

import os
from pathlib import Path

import pytest

from zerotools.core.errors import BadRequest
from zerotools.io.output.journal import NAME, Journal, is_of_journals

IDENTITY = {"source files": "1", "options": "2"}
HEAD = '{"schema": "zerotools.journal/1", "identity": {"source files": "1", "options": "2"}}\n'


def begun(directory: Path) -> None:
    journal = Journal(directory, IDENTITY, resume=False)
    journal.add("a", [1])
    journal.add("sub/b", [])
    journal.close()


def test_what_is_complete_is_known_again(tmp_path: Path) -> None:
    begun(tmp_path)
    journal = Journal(tmp_path, IDENTITY, resume=True)
    assert journal.done == {"a": [1], "sub/b": []}
    journal.add("c", None)
    journal.close()
    journal = Journal(tmp_path, IDENTITY, resume=True)
    assert list(journal.done) == ["a", "sub/b", "c"]
    journal.close()


def test_a_line_that_was_cut_short_is_not_there(tmp_path: Path) -> None:
    begun(tmp_path)
    whole = (tmp_path / NAME).read_bytes()
    for length in range(len(whole)):
        (tmp_path / NAME).write_bytes(whole[:length])
        journal = Journal(tmp_path, IDENTITY, resume=True)
        assert len(journal.done) == max(0, whole[:length].count(b"\n") - 1)
        journal.add("z", None)
        journal.close()
        again = Journal(tmp_path, IDENTITY, resume=True)
        assert list(again.done) == [*journal.done]
        again.close()


def test_without_resume_it_begins_anew(tmp_path: Path) -> None:
    begun(tmp_path)
    journal = Journal(tmp_path, IDENTITY, resume=False)
    assert journal.done == {}
    journal.close()
    journal = Journal(tmp_path, IDENTITY, resume=True)
    assert journal.done == {}
    journal.close()


def test_another_output_is_refused_with_what_differs(tmp_path: Path) -> None:
    begun(tmp_path)
    with pytest.raises(BadRequest, match="had other options; leave --resume out"):
        Journal(tmp_path, {**IDENTITY, "options": "3"}, resume=True)
    (tmp_path / NAME).write_text('{"schema": "zerotools.journal/9"}\n')
    with pytest.raises(
        BadRequest, match="it was started by another version of zerotools; leave --resume out"
    ):
        Journal(tmp_path, IDENTITY, resume=True)


@pytest.mark.parametrize(
    "text",
    ["{]\n", "[" * 100_000 + "\n", "\xff\n", '{"schema": "zerotools.journal/1"}\n', f"{HEAD}[]\n",
     f'{HEAD}{{"file": 1, "noted": 2}}\n'],
)  # fmt: skip
def test_a_damaged_one_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / NAME).write_text(text, "latin-1")
    with pytest.raises(
        BadRequest, match="cannot be resumed: its record of finished files is damaged; leave"
    ):
        Journal(tmp_path, IDENTITY, resume=True)


def test_a_pipe_in_its_place_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / NAME)
    with pytest.raises(BadRequest, match="is a named pipe"):
        Journal(tmp_path, IDENTITY, resume=True)


def test_journals_are_known_by_name() -> None:
    assert [is_of_journals(name) for name in (NAME, f"{NAME}.7", "a", f"x{NAME}")] == [
        True, True, False, False,
    ]  # fmt: skip
