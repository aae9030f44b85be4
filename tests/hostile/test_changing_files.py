"""A file that shrinks, grows, is replaced or goes at any system call of the command that reads it:
what comes of it is the output of one state of the file, or a sentence that names it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.syscalls import IS_SUPPORTED
from tests.hostile.changing import CHANGES, READERS, Shown, file_of, loaded, show
from tests.matrices import FULL

pytestmark = pytest.mark.skipif(
    not IS_SUPPORTED, reason="the numbers of system calls are those of x86-64"
)

PAIRS = (
    ("zip", "inspect"),
    ("zip", "verify"),
    ("safetensors", "consolidate"),
    ("safetensors", "verify --against"),
    ("index", "inspect"),
    ("shard", "diff"),
    ("metadata", "inspect"),
    ("item", "consolidate"),
    ("deepspeed", "reshard"),
    ("deepspeed", "thin"),
    ("model file", "convert"),
    ("latest", "inspect"),
    ("legacy", "salvage"),
    ("universal", "consolidate"),
    ("verl", "salvage --fill-from"),
)


@pytest.mark.parametrize(("reader", "command"), PAIRS)
def test_it_is_one_state_or_a_sentence(reader: str, command: str, tmp_path: Path) -> None:
    loaded()
    usual = show(reader, command, tmp_path, None)
    assert usual.status in (0, 1), usual
    assert usual.calls
    for change in _changes(PAIRS.index((reader, command))):
        for number in _moments(len(usual.calls)):
            found = show(reader, command, tmp_path, number, change)
            _judge(found, usual, (reader, command, change, number))
            if found.status not in (0, 1):
                assert file_of(reader, tmp_path, "same").name in found.said, found


def _changes(turn: int) -> list[str]:
    """All in the full matrix; else two of them by turns."""
    names = [*CHANGES]
    return names if FULL else [names[(turn + more) % len(names)] for more in range(2)]


def _moments(count: int) -> Iterator[int]:
    """All in the full matrix; else one in the middle, where most is read."""
    yield from range(count) if FULL else (count // 2,)


def _judge(found: Shown, usual: Shown, where: object) -> None:
    assert found.status in (0, 1, 2, 3, 4), (where, found)
    assert "Traceback" not in found.said, (where, found)
    assert "defect in zerotools" not in found.said, (where, found)
    if found.status > 1:
        assert not found.made, (where, found)
    elif found.status == usual.status == 0 and usual.made:
        assert found.made.keys() == usual.made.keys(), where


def test_each_reader_is_shown() -> None:
    assert {reader for reader, _ in PAIRS} == READERS.keys()


@pytest.mark.parametrize("change", ["grows", "is replaced"])
def test_no_output_is_made_of_two_states(change: str, tmp_path: Path) -> None:
    """The weights are those from before or those from after the change, at every moment."""
    loaded()
    before = show("safetensors", "consolidate", tmp_path, None)
    after = show("safetensors", "consolidate", tmp_path, 0, change)
    for number in range(1, len(before.calls)):
        found = show("safetensors", "consolidate", tmp_path, number, change)
        assert found.status != 0 or found.made in (before.made, after.made), (number, found)
        if found.status:
            assert "model.safetensors" in found.said
