"""Files of sequence-parallel ranks, whose names look like those of model-parallel ranks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.golden_files import GOLDEN
from zerotools.formats import read
from zerotools.formats.deepspeed.reading.merge_mp_ranks import with_sequence_ranks
from zerotools.formats.deepspeed.schema.tag_file_names import TagListing, optim_file
from zerotools.ops.conversions import reshard
from zerotools.ops.conversions.conversion import Conversion, prove_coverage

SAVED = GOLDEN / "deepspeed-0.18.9"


def listing(*ranks: tuple[int, int]) -> TagListing:
    """Optimizer files of (mp rank, dp rank)."""
    return TagListing(optim_files={(mp, dp, "_"): optim_file(mp, dp) for mp, dp in ranks})


def joined(*ranks: tuple[int, int], size: int) -> set[tuple[int, int]]:
    """(mp rank, dp rank) of what they are taken for."""
    found = with_sequence_ranks(listing(*ranks), size)
    return {(mp, dp) for mp, dp, _ in found.optim_files}


def test_files_that_fill_the_gaps_are_joined() -> None:
    assert joined((0, 0), (1, 1), (0, 2), (1, 3), size=4) == {(0, n) for n in range(4)}
    assert joined((0, 0), (1, 1), (2, 2), (3, 3), size=4) == {(0, n) for n in range(4)}
    assert joined((0, 0), (1, 1), (1, 3), size=4) == {(0, 0), (0, 1), (0, 3)}  # one is lost


@pytest.mark.parametrize(
    "ranks",
    [
        ((0, 0), (0, 1), (1, 0), (1, 1)),  # two of each rank: two model-parallel ranks
        ((0, 0), (0, 1), (1, 1)),
        ((0, 0), (0, 1), (1, 2)),  # beyond the run
        ((0, 0), (1, 2), (0, 3)),  # not in turn
    ],
)
def test_files_that_do_not_are_left_where_they_are(ranks: tuple[tuple[int, int], ...]) -> None:
    assert joined(*ranks, size=4 if (0, 3) in ranks else 2) == set(ranks)


@pytest.mark.parametrize(
    ("case", "lost"),
    [
        ("sequence-z2-bf16-w4", "bf16_zero_pp_rank_3_mp_rank_01_optim_states.pt"),
        ("sequence-z2-bf16-w4", "bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt"),
        ("sequence-z3-bf16-w4", "zero_pp_rank_1_mp_rank_01_model_states.pt"),
    ],
)
def test_a_lost_file_is_named_as_it_was_called(case: str, lost: str, tmp_path: Path) -> None:
    shutil.copytree(SAVED / case / "checkpoint", tmp_path / "saved")
    (path,) = (tmp_path / "saved").glob(f"*/{lost}")
    path.unlink()
    try:
        said = [problem.message for problem in read(tmp_path / "saved").problems]
    except Exception as error:
        said = [str(error)]
    assert len(said) == 1
    assert f"{lost} is missing" in said[0]


def test_the_output_says_how_its_files_are_called(tmp_path: Path) -> None:
    source = SAVED / "sequence-z1-fp32-w2" / "checkpoint"
    conversion = reshard.prepare_reshard(source, tmp_path / "out", world_size=3)
    assert isinstance(conversion, Conversion)
    prove_coverage(conversion)
    assert any("all files are named mp_rank_00" in note for note in conversion.notes)
