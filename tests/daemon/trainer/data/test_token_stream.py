from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.daemon.trainer.several import Runs, run_all
from zerotools.core.errors import BadFile, BadRequest
from zerotools.runs import find_job_checkpoints
from zerotoolsd.trainer.data.token_stream import (
    PIECE_BYTES,
    ByteTokens,
    find_files,
    measured_sizes,
    text_pieces,
    whole_lines,
)


def test_files_come_sorted_by_pattern_and_once(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", "deep/c.txt", "other.md"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(name)
    found = find_files([f"{tmp_path}/other.md", f"{tmp_path}/**/*.txt", f"{tmp_path}/*.txt"])
    assert [path.name for path in found] == ["other.md", "a.txt", "b.txt", "c.txt"]


def test_a_pattern_without_a_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(BadRequest, match=r"no file matches .*/folder"):
        find_files([f"{tmp_path}/folder"])


@pytest.mark.parametrize("before", [0, 5, PIECE_BYTES - 1, PIECE_BYTES + 7])
def test_the_first_byte_that_is_not_utf8_is_named(tmp_path: Path, before: int) -> None:
    path = tmp_path / "latin.txt"
    path.write_bytes(b"\n" + b"a" * before + b"\n\xe9 is Latin-1")
    with pytest.raises(BadFile, match=rf"latin\.txt, line 3: .* byte {before + 2} .* 0xe9"):
        measured_sizes([path])


def test_a_character_cut_off_at_the_end_is_named(tmp_path: Path) -> None:
    path = tmp_path / "cut.txt"
    path.write_bytes(b"abc" + "é".encode()[:1])
    with pytest.raises(BadFile, match=r"line 1: .* byte 3 of the file is 0xc3"):
        measured_sizes([path])


def test_a_character_across_two_pieces_is_one(tmp_path: Path) -> None:
    path = tmp_path / "long.txt"
    text = "a" * (PIECE_BYTES - 1) + "€" + "b" * 10
    path.write_text(text, "utf-8")
    assert "".join(text_pieces(path)) == text
    assert measured_sizes([path]) == [PIECE_BYTES + 12]


class Appended(str):
    """A piece of text that must not be appended to another: a line of n pieces would be copied n
    times."""

    def __radd__(self, other: str) -> str:
        raise AssertionError(f"appended to {len(other)} characters")


def test_a_line_of_many_pieces_is_joined_once() -> None:
    pieces = [*map(Appended, ("a\nb", "c", "", "d\ne", "\n", "f", "g"))]
    assert list(whole_lines(pieces)) == ["a\n", "bcd\n", "e\n", "fg"]
    assert list(whole_lines(["a\n", ""])) == ["a\n"]


@given(parts=st.lists(st.binary(max_size=9), min_size=1, max_size=6), data=st.data())
def test_a_slice_is_that_of_the_files_joined(
    parts: list[bytes], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("parts")
    paths = [folder / str(number) for number in range(len(parts))]
    for path, part in zip(paths, parts, strict=True):
        path.write_bytes(part)
    joined = b"".join(parts)
    tokens = ByteTokens(paths, [len(part) for part in parts])
    start = data.draw(st.integers(0, len(joined)))
    stop = data.draw(st.integers(start, len(joined)))
    assert len(tokens) == len(joined)
    assert tokens.read(start, stop).tobytes() == joined[start:stop]


def test_a_file_that_shrinks_while_it_is_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(b"0123456789")
    tokens = ByteTokens([path], measured_sizes([path]))
    path.write_bytes(b"01234")
    with pytest.raises(BadFile, match=r"log\.txt had 10 bytes when the job began"):
        tokens.read(2, 8)


def held_out(fraction: float, **changes: Any) -> dict[str, Any]:
    return {"eval": {"fraction": fraction}, **changes}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Runs:
    """Two ranks; the ids of the bytes of `text`, in all that a job can name."""
    directory = tmp_path_factory.mktemp("tokens")
    ids = text.read_bytes()
    half = len(ids) // 2
    np.save(directory / "a.npy", np.frombuffer(ids[:half], "u1").astype("i8"))
    np.save(directory / "b.npy", np.frombuffer(ids[half:], "u1").astype("u4"))
    (directory / "all.bin").write_bytes(np.frombuffer(ids, "u1").astype("<u2").tobytes())
    (directory / "changed").mkdir()
    changed = directory / "changed" / text.name
    changed.write_bytes(ids.upper())
    half_way = directory / "out" / "held-out" / "out" / find_job_checkpoints.directory_name(2)
    jobs = {
        "text": {},
        "npy": {"data": {"text": [], "tokens": [str(directory / "*.npy")]}},
        "raw": {"data": {"text": [], "tokens": [str(directory / "*.bin")], "token_type": "uint16"}},
        "held-out": held_out(0.25, checkpoint={"every": 2}),
        "other-order": held_out(0.1, resume_from=str(half_way), data={"text": [str(changed)]}),
        "same-order": held_out(0.25, resume_from=str(half_way)),
    }
    return run_all(directory, text, 2, jobs, ends=("text",))


@pytest.mark.torch
@pytest.mark.parametrize("kind", ["npy", "raw"])
def test_they_train_as_the_text_does(runs: Runs, kind: str) -> None:
    assert len(runs.losses("text")) == 4
    assert runs.losses(kind) == runs.losses("text")
    assert runs.ended(kind) == runs.ended("text")


@pytest.mark.torch
def test_another_number_of_sequences_is_said_at_resume(runs: Runs) -> None:
    whole = find_job_checkpoints.read_record(runs.checkpoint("text", 4)).data
    kept = find_job_checkpoints.read_record(runs.checkpoint("held-out", 2)).data
    assert whole is not None
    assert kept is not None
    assert whole.sequences is not None
    assert kept.sequences == whole.sequences - round(whole.sequences * 0.25)
    log = (runs.directory.parent / "rank-0.log").read_text("utf-8")
    note, of_files = (line for line in log.splitlines() if line.startswith("note: "))
    was = "the data has changed since step-00000002 was saved (verses.txt changed): "
    assert was in of_files
    now = whole.sequences - round(whole.sequences * 0.1)
    assert f"an epoch had {kept.sequences} sequences" in note
    assert f"has {now} now" in note
