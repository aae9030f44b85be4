"""Damage to a checkpoint of a program's own: in any layout, and told apart from what is unknown."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path

import pytest

from tests.golden_files import DEEPSPEED
from zerotools.core.checkpoint import Problem
from zerotools.core.errors import BadFile
from zerotools.ops.inspection.completeness import (
    MOST_NAMES,
    check_completeness,
    damage_sentences,
    grouped_faults,
    lost_rank_sidecars,
)

TRAINER = DEEPSPEED / "hf-trainer-z2-bf16-w2" / "checkpoint" / "checkpoint-2"


def zipped(path: Path) -> None:
    """Write what torch.save makes of an object that zerotools does not know."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02]q\x00.")
        archive.writestr("archive/version", b"3\n")


def test_what_zerotools_does_not_read_is_not_damaged(tmp_path: Path) -> None:
    zipped(tmp_path / "state.pt")
    (tmp_path / "own.bin").write_bytes(b"bytes of a program")
    for path in (tmp_path / "state.pt", tmp_path / "own.bin", tmp_path):
        assert list(damage_sentences(path)) == [], path
    assert check_completeness(tmp_path / "state.pt").problem is not None


def test_a_file_that_is_cut_off_or_empty_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "state.pt"
    zipped(path)
    path.write_bytes(path.read_bytes()[:-30])
    assert "truncated" in next(damage_sentences(path))
    assert "truncated" in next(damage_sentences(tmp_path))
    path.write_bytes(b"")
    assert list(damage_sentences(tmp_path)) == [f"{path} is empty; copy or download it again"]


def test_a_file_of_several_that_is_missing_is_damage(tmp_path: Path) -> None:
    (tmp_path / "own-00001-of-00002.bin").write_bytes(b"x")
    with pytest.raises(BadFile, match=r"own-00002-of-00002.bin is missing"):
        next(damage_sentences(tmp_path))
    (tmp_path / "own-00001-of-00002.bin").rename(tmp_path / "part.bin")
    index = {"weight_map": {"w": "part.bin", "b": "gone.bin"}}
    (tmp_path / "pytorch_model.bin.index.json").write_text(json.dumps(index))
    assert [each.rpartition("/")[2] for each in damage_sentences(tmp_path)] == [
        "gone.bin is missing, but pytorch_model.bin.index.json lists it; copy or download it again"
    ]


def test_a_layout_that_is_no_guess_must_be_whole(tmp_path: Path) -> None:
    path = shutil.copytree(TRAINER, tmp_path / "checkpoint-2")
    assert list(damage_sentences(path)) == []
    next(path.rglob("*zero_pp_rank_1_mp_rank_00_optim_states.pt")).unlink()
    assert "is missing; the run had 2 ranks" in next(damage_sentences(path))


@pytest.mark.parametrize(
    ("names", "world_size", "lost"),
    [
        (["c/rng_state_0.pth"], 2, ["c/rng_state_1.pth"]),
        (["rng_state_0.pth", "rng_state_2.pth"], None, ["rng_state_1.pth"]),
        (["rng_state.pth"], 2, []),
        (["random_states_0.pkl", "random_states_1.pkl"], 2, []),
        (["random_states_1.pkl", "random_states_0.pkl"], 1, []),
        (
            ["extra_state_world_size_3_rank_1.pt"],
            None,
            ["extra_state_world_size_3_rank_0.pt", "extra_state_world_size_3_rank_2.pt"],
        ),
        (["rng_state_999999.pth"], None, [f"rng_state_{n}.pth" for n in range(8)]),
        ([], 2, []),
    ],
)
def test_what_a_rank_lost(names: list[str], world_size: int | None, lost: list[str]) -> None:
    found = list(lost_rank_sidecars("/c", names, world_size))
    assert [each.file for each in found] == lost
    assert all(f"/c/{each.file} is missing; the run had" in each.message for each in found)


CAUSE = "rank-1.pt is missing (the run had 2 ranks); copy it again"


def lost(name: str, cause: str = CAUSE) -> Problem:
    return Problem(f"{name} is incomplete: 8 of 16 elements are in no file ({cause})", tensor=name)


def test_tensors_of_a_faulty_file_are_one_sentence() -> None:
    file = Problem(CAUSE, file="rank-1.pt")
    alone = Problem("c has an unknown type", tensor="c")
    other = lost("d", "another cause")
    faults = [file, lost("a"), alone, lost("b"), other]
    own, consequences = grouped_faults(faults)
    assert own == [file, alone, other]
    assert consequences == "2 tensors incomplete because of that: a, b"
    assert grouped_faults([alone, other]) == ([alone, other], None)


def test_a_long_list_of_tensors_is_cut() -> None:
    faults = [Problem(CAUSE, file="rank-1.pt"), *(lost(f"t{n}") for n in range(MOST_NAMES + 3))]
    _, consequences = grouped_faults(faults)
    assert consequences is not None
    assert consequences.endswith("t7 and 3 more")
