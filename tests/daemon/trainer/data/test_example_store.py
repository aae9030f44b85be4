"""Files that are cut short, replaced or removed while a job trains on them; pairs of answers."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from zerotools.core.errors import BadFile
from zerotools.jobs.datafiles.token_files import TokenArray
from zerotoolsd.trainer.data.encoding.encoded_example import Encoded, as_ids, mark_learned
from zerotoolsd.trainer.data.example_pools import IGNORED
from zerotoolsd.trainer.data.example_store import (
    Examples,
    PreferencePairs,
    index_of,
    write_examples,
)
from zerotoolsd.trainer.data.token_stream import TokenStream, largest_id


def numbers(path: Path, count: int) -> Path:
    path.write_bytes(np.arange(count, dtype="<u4").tobytes())
    return path


def test_examples_that_are_cut_short(tmp_path: Path) -> None:
    path = numbers(tmp_path / "ids", 100)
    index_of(path).write_bytes(np.array([[0, 50, 1, 1], [50, 50, 1, 1]], "<u8").tobytes())
    examples = Examples(path, encoder_decoder=False)
    assert len(examples) == 2
    assert examples.size(1) == 49
    os.truncate(path, 4 * 60)
    assert len(examples.example(0).inputs) == 49
    with pytest.raises(BadFile, match="a program truncated the file"):
        examples.example(1)


def test_token_files_that_shrink_or_go(tmp_path: Path) -> None:
    arrays = [TokenArray(numbers(tmp_path / f"{n}", 100), 0, 100, "uint32") for n in range(3)]
    stream = TokenStream(arrays, 100)
    assert stream.read(98, 102).tolist() == [98, 99, 0, 1]
    os.truncate(tmp_path / "1", 40)
    with pytest.raises(BadFile, match=r"1 is truncated: it ends at byte 40"):
        stream.read(100, 150)
    (tmp_path / "2").unlink()
    with pytest.raises(BadFile, match=r"2 is missing, but data\.tokens lists it"):
        stream.read(200, 210)
    with pytest.raises(BadFile, match="truncated the file"):
        largest_id(arrays[1:2])


def test_more_token_files_than_may_be_open(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = 300
    arrays = [TokenArray(numbers(tmp_path / f"{n}", 4), 0, 4, "uint32") for n in range(count)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    try:
        assert len(TokenStream(arrays, 4).read(0, 4 * count)) == 4 * count
        assert largest_id(arrays) == 3
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def pairs_in(path: Path, answers: Sequence[tuple[list[int], list[int]]]) -> PreferencePairs:
    encoded = [
        Encoded("here", np.append(as_ids(asked), mark_learned(as_ids(answer))), len(asked))
        for asked, answer in answers
    ]
    write_examples(encoded, path, encoder_decoder=False)
    return PreferencePairs(Examples(path, encoder_decoder=False))


FOUR = [([5, 6], [7, 2]), ([5, 6], [8, 9, 2]), ([4], [3, 2]), ([4], [2])]


def test_a_pair_is_the_chosen_answer_with_the_rejected_one(tmp_path: Path) -> None:
    pairs = pairs_in(tmp_path / "ids", FOUR)
    assert len(pairs) == 2
    pairs.set_references(np.array([[-1, -2], [-3, -4]], np.float32))
    first, last = pairs.example(0), pairs.example(1)
    assert list(first.inputs) == [5, 6, 7]
    assert list(first.targets) == [IGNORED, 7, 2]
    assert list(first.rejected.targets) == [IGNORED, 8, 9, 2]
    assert (first.reference, last.reference) == ((-1.0, -2.0), (-3.0, -4.0))
    assert [pairs.size(0), pairs.size(1)] == [3 + 4, 2 + 1]
    assert pairs.predicted(0) == 1


def test_a_silent_pair_does_not_count(tmp_path: Path) -> None:
    pair = pairs_in(tmp_path / "ids", FOUR).example(0)
    quiet = pair.without_targets()
    assert pair.has_targets
    assert not quiet.has_targets
    assert {*quiet.targets, *quiet.rejected.targets} == {IGNORED}
    assert list(quiet.rejected.inputs) == list(pair.rejected.inputs)


def test_the_digest_follows_from_the_tokens(tmp_path: Path) -> None:
    digests = {
        name: pairs_in(tmp_path / name, answers).digest()
        for name, answers in {
            "one": FOUR,
            "again": FOUR,
            "other answer": [*FOUR[:3], ([4], [9])],
            "longer prompt": [*FOUR[:3], ([4, 2], [])],
        }.items()
    }
    assert digests["one"] == digests.pop("again")
    assert len(set(digests.values())) == len(digests)
