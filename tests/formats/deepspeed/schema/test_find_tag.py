from __future__ import annotations

from pathlib import Path

import pytest

from zerotools.core.errors import BadRequest, Unsupported
from zerotools.formats.deepspeed.schema.find_tag import find_tag
from zerotools.formats.deepspeed.schema.tag_file_names import list_files


def tag(directory: Path, *names: str) -> Path:
    directory.mkdir(parents=True)
    for name in names or ("mp_rank_00_model_states.pt",):
        (directory / name).touch()
    return directory


def found(path: Path, name: str | None = None) -> str:
    answer = find_tag(path, name)
    assert answer is not None
    return answer.name


def test_the_tag_itself_and_what_latest_says(tmp_path: Path) -> None:
    tag(tmp_path / "global_step10")
    tag(tmp_path / "global_step20")
    assert found(tmp_path / "global_step20") == "global_step20"
    (tmp_path / "latest").write_text("global_step10\n")
    answer = find_tag(tmp_path)
    assert answer is not None
    assert (answer.name, answer.others, answer.notes) == ("global_step10", ("global_step20",), ())
    assert found(tmp_path, "global_step20") == "global_step20"
    assert found(tmp_path / "global_step10", "global_step20") == "global_step20"


def test_the_only_tag_is_taken_and_said(tmp_path: Path) -> None:
    tag(tmp_path / "pytorch_model")
    answer = find_tag(tmp_path)
    assert answer is not None
    assert "has no latest file; took its only tag, pytorch_model" in answer.notes[0]


@pytest.mark.parametrize("latest", ["gone", "../../etc", "", "x" * 5000])
def test_a_latest_that_leads_nowhere(tmp_path: Path, latest: str) -> None:
    tag(tmp_path / "a")
    tag(tmp_path / "b")
    (tmp_path / "latest").write_text(latest)
    with pytest.raises(BadRequest, match=r"has 2 tags \(a, b\) .*pass --tag"):
        find_tag(tmp_path)


def test_an_unknown_tag_lists_the_known(tmp_path: Path) -> None:
    tag(tmp_path / "a")
    with pytest.raises(BadRequest, match="has no tag 'z'; its tags: a"):
        find_tag(tmp_path, "z")


def test_nothing_of_deepspeed(tmp_path: Path) -> None:
    assert find_tag(tmp_path) is None


def test_the_grammar_of_names(tmp_path: Path) -> None:
    listing = list_files(
        tag(
            tmp_path / "t",
            "zero_pp_rank_11_mp_rank_01_model_states.pt",
            "bf16_zero_pp_rank_11_mp_rank_01_optim_states.pt",
            "zero_pp_rank_2_mp_rank_00optim_states.pt",
            "layer_03-model_01-model_states.pt",
            "layer_04-model_states.pt",
            "layer_0_expert_7_mp_rank_00_model_states.pt",
            "expp_rank_1_mp_rank_00_optim_states.pt",
            "unrelated.txt",
        )
    )
    assert set(listing.models) == {(1, 11)}
    assert set(listing.optim_files) == {(1, 11, "bf16__"), (0, 2, "")}
    assert set(listing.layers) == {(3, 1), (4, 0)}
    assert set(listing.experts) == {(0, 7, 0)}
    assert len(listing.expert_optimizers) == 1


def test_split_files_are_refused_by_name(tmp_path: Path) -> None:
    directory = tag(tmp_path / "t", "mp_rank_00_model_states.pt-0.2")
    with pytest.raises(Unsupported, match=r"mp_rank_00_model_states\.pt-0\.2 is one part"):
        list_files(directory)
