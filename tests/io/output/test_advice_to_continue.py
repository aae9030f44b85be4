"""What is said of a staging directory, of every command that leaves one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zerotools.io.output.advice_to_continue import advice_to_continue
from zerotools.io.output.journal import NAME, Journal
from zerotools.io.output.part_ledger import PartLedger

IDENTITY = {"source": "0a1b"}


def _parts(directory: Path, begun: tuple[int, ...], of: int) -> str:
    ledger = PartLedger(directory, IDENTITY, of)
    for part in begun:
        ledger.journal(part).close()
    ledger.close()
    said = advice_to_continue(directory)
    assert said is not None
    assert f"with --part I/{of}" in said
    return said


def test_of_parts_those_are_named_that_nobody_began(tmp_path: Path) -> None:
    assert "no run has begun part 1, 3)" in _parts(tmp_path, (2, 4), 4)
    assert "a run has begun each part" in _parts(tmp_path, (1, 3), 4)


def test_of_many_parts_some_are_named(tmp_path: Path) -> None:
    said = _parts(tmp_path, (2,), 1000)
    assert "part 1, 3, 4, 5, 6, 7, 8, 9 and 991 more)" in said


def test_an_output_that_one_run_makes_is_resumed(tmp_path: Path) -> None:
    Journal(tmp_path, IDENTITY, resume=False).close()
    assert "with --resume" in str(advice_to_continue(tmp_path))


def test_what_was_gathered_is_gathered_on(tmp_path: Path) -> None:
    Journal(tmp_path, {"command": "gather", "tag": ""}, resume=False).close()
    said = str(advice_to_continue(tmp_path))
    assert "zerotools gather" in said
    assert "--resume" not in said


@pytest.mark.parametrize(
    "data",
    [
        None,
        b"",
        b"{",
        b"[]\n",
        b"\xff\n",
        json.dumps({"schema": "zerotools.parts/1", "identity": {}, "parts": -1}).encode() + b"\n",
        json.dumps({"schema": "other/1", "identity": {}}).encode() + b"\n",
        b"[" * 30000 + b"\n",
    ],
)
def test_what_zerotools_did_not_begin_is_none(data: bytes | None, tmp_path: Path) -> None:
    if data is not None:
        (tmp_path / NAME).write_bytes(data)
    assert advice_to_continue(tmp_path) is None


def test_a_journal_that_is_no_file_is_none(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    assert advice_to_continue(tmp_path) is None
