"""Pairs of answers, by number."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from zerotoolsd.trainer.data.encoding.encoded import Encoded, said
from zerotoolsd.trainer.data.examplestore import Examples, write_examples
from zerotoolsd.trainer.data.preferences import PreferencePairs
from zerotoolsd.trainer.data.sequences import IGNORED

if TYPE_CHECKING:
    from collections.abc import Sequence


def pairs_in(path: Path, answers: Sequence[tuple[list[int], list[int]]]) -> PreferencePairs:
    encoded = [Encoded("here", asked + said(answer), len(asked)) for asked, answer in answers]
    write_examples(encoded, path, encoder_decoder=False)
    return PreferencePairs(Examples(path, encoder_decoder=False))


FOUR = [([5, 6], [7, 2]), ([5, 6], [8, 9, 2]), ([4], [3, 2]), ([4], [2])]


def test_a_pair_is_the_chosen_answer_with_the_rejected_one(tmp_path: Path) -> None:
    pairs = pairs_in(tmp_path / "ids", FOUR)
    assert len(pairs) == 2
    pairs.known(np.array([[-1, -2], [-3, -4]], np.float32))
    first, last = pairs.example(0), pairs.example(1)
    assert list(first.inputs) == [5, 6, 7]
    assert list(first.targets) == [IGNORED, 7, 2]
    assert list(first.rejected.targets) == [IGNORED, 8, 9, 2]
    assert (first.reference, last.reference) == ((-1.0, -2.0), (-3.0, -4.0))
    assert [pairs.size(0), pairs.size(1)] == [3 + 4, 2 + 1]
    assert pairs.predicted(0) == 1


def test_a_silent_pair_does_not_count(tmp_path: Path) -> None:
    pair = pairs_in(tmp_path / "ids", FOUR).example(0)
    quiet = pair.silent()
    assert pair.counts
    assert not quiet.counts
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
