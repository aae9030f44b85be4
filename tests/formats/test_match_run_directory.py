from __future__ import annotations

from pathlib import Path

import pytest

from tests.formats.test_run_directory_layouts import DCP, TAG, TRAINER, VERL, below, make_run
from zerotools.core.errors import BadFile, BadRequest
from zerotools.formats import UnfinishedCheckpoint, detect
from zerotools.formats.match_run_directory import run_at
from zerotools.io.files.directory_entries import names_in

TRACKER = "latest_checkpointed_iteration.txt"


def verl_run(root: Path, *steps: int, tracked: str | None = None) -> Path:
    names = [name for step in steps for name in below(f"global_step_{step}/actor", VERL)]
    make_run(root, names)
    if tracked is not None:
        (root / TRACKER).write_text(tracked)
    return root


def test_the_tracker_decides_and_newer_ones_are_named(tmp_path: Path) -> None:
    found = detect(verl_run(tmp_path, 2, 4, 6, tracked="4\n"))
    assert found.path == tmp_path / "global_step_4/actor"
    assert found.notes == (f"took global_step_4, which {TRACKER} names, not global_step_6",)


def test_without_a_tracker_the_newest_finished_one_is_taken(tmp_path: Path) -> None:
    verl_run(tmp_path, 2, 10)
    make_run(tmp_path, ["global_step_12/actor/extra_state_world_size_1_rank_0.pt"])
    found = detect(tmp_path)
    assert found.path == tmp_path / "global_step_10/actor"
    assert found.notes == (
        "took global_step_10, because the save of global_step_12 was not finished",
    )


def test_another_model_of_the_checkpoint_is_named(tmp_path: Path) -> None:
    verl_run(tmp_path, 2)
    make_run(tmp_path, below("global_step_2/critic", VERL))
    found = detect(tmp_path)
    assert found.path.name == "actor"
    assert found.notes == (f"took actor; {tmp_path / 'global_step_2'} holds critic too",)


def test_another_model_is_not_taken_for_one_that_is_not_finished(tmp_path: Path) -> None:
    make_run(
        tmp_path,
        [
            "global_step_2/actor/extra_state_world_size_1_rank_0.pt",
            *below("global_step_2/critic", VERL),
        ],
    )
    with pytest.raises(UnfinishedCheckpoint, match="global_step_2 was not finished"):
        detect(tmp_path)


@pytest.mark.parametrize(
    ("tracked", "said"),
    [
        (
            "6",
            "which is not there; pass the path of global_step_4 or global_step_2",
        ),
        ("../../etc", "has '../../etc', which is not the name of a checkpoint"),
        ("", "has '', which is not the name of a checkpoint"),
        ("x" * 5000, "may have at most 4096"),
    ],
)
def test_a_tracker_that_names_nothing_is_refused(tmp_path: Path, tracked: str, said: str) -> None:
    verl_run(tmp_path, 2, 4, tracked=tracked)
    with pytest.raises(BadFile, match=said):
        detect(tmp_path)


def test_a_tracker_that_names_an_unfinished_one_is_refused(tmp_path: Path) -> None:
    verl_run(tmp_path, 2, tracked="4")
    make_run(tmp_path, ["global_step_4/actor/fsdp_config.json"])
    with pytest.raises(BadFile, match=r"which is not finished; pass the path of global_step_2"):
        detect(tmp_path)


def test_two_runs_in_one_directory_are_asked_about(tmp_path: Path) -> None:
    for version in ("v0-20260101-120000", "v10-20260102-120000", "v9-20260102-110000"):
        make_run(tmp_path, below(f"{version}/checkpoint-2", (*TRAINER, "args.json")))
    with pytest.raises(BadRequest, match=r"3 runs of ms-swift: name .*v0-.* or .*v9-.* or .*v10-"):
        detect(tmp_path)
    make_run(tmp_path / "one", below("v3-20260101-120000/checkpoint-2", (*TRAINER, "args.json")))
    assert detect(tmp_path / "one").path.name == "checkpoint-2"


def test_what_is_written_last_tells_a_save_that_was_killed(tmp_path: Path) -> None:
    make_run(tmp_path, below("checkpoint-9", TRAINER))
    make_run(tmp_path, ["checkpoint-10/model.safetensors", "checkpoint-10/optimizer.pt"])
    found = detect(tmp_path)
    assert found.path.name == "checkpoint-9"
    assert found.notes == ("took checkpoint-9, because the save of checkpoint-10 was not finished",)
    run = run_at(tmp_path, names_in(tmp_path))
    assert run is not None
    assert run.fault_of(run.entries[-1]) == "it has no trainer_state.json, which is written last"


def test_a_tag_of_a_run_may_be_asked_for(tmp_path: Path) -> None:
    make_run(
        tmp_path,
        [
            *below("_actor/global_step20", TAG),
            *below("_actor/best_global_step5", TAG),
            "_actor/latest=global_step20",
        ],
    )
    run = run_at(tmp_path, names_in(tmp_path))
    assert run is not None
    assert [entry.name for entry in run.entries] == [
        "_actor/best_global_step5",
        "_actor/global_step20",
    ]


def test_a_file_is_no_checkpoint_of_a_program_that_makes_directories(tmp_path: Path) -> None:
    verl_run(tmp_path, 2)
    (tmp_path / "global_step_9").touch()
    assert detect(tmp_path).notes == ()


def test_checkpoints_of_ema_and_other_files_do_not_hide_a_run(tmp_path: Path) -> None:
    make_run(tmp_path, [*below("step_3/trainer", DCP), "step_x/trainer/.metadata", "notes.txt"])
    assert detect(tmp_path).path == tmp_path / "step_3/trainer"


def test_other_directories_are_no_run(tmp_path: Path) -> None:
    make_run(tmp_path, ["a.ckpt", "step_3/readme", "global_step_2/readme", "checkpoint-2/readme"])
    assert run_at(tmp_path, names_in(tmp_path)) is None


def test_numbers_beyond_any_step_are_ordered_too(tmp_path: Path) -> None:
    big = "9" * 120
    make_run(tmp_path, [*below(f"global_step_{big}", VERL), *below("global_step_8", VERL)])
    assert detect(tmp_path).path.name == f"global_step_{big}"
