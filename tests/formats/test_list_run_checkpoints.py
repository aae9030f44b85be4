from __future__ import annotations

from pathlib import Path

from tests.formats.test_match_run_directory import verl_run
from tests.formats.test_run_directory_layouts import TAG, TRAINER, VERL, below, make_run
from zerotools.formats import detect
from zerotools.formats.list_run_checkpoints import find_run_listing


def test_all_checkpoints_of_a_run_newest_first(tmp_path: Path) -> None:
    verl_run(tmp_path, 2, 10)
    make_run(tmp_path, [*below("global_step_10/critic", VERL), "global_step_12/actor/readme"])
    run = find_run_listing(tmp_path, detect(tmp_path).path)
    assert run is not None
    assert (run.program, run.path) == ("verl", tmp_path)
    assert [
        (each.name, each.step, each.format, each.fault, each.is_taken, each.models)
        for each in run.checkpoints
    ] == [
        ("global_step_12", 12, None, "its save was not finished", False, ("actor",)),
        ("global_step_10", 10, "torchfile", None, True, ("actor", "critic")),
        ("global_step_2", 2, "torchfile", None, False, ("actor",)),
    ]


def test_the_run_of_a_checkpoint_lies_above_it(tmp_path: Path) -> None:
    actor = verl_run(tmp_path, 2, 10) / "global_step_2/actor"
    run = find_run_listing(actor, actor)
    assert run is not None
    assert run.path == tmp_path
    assert [each.name for each in run.checkpoints if each.is_taken] == ["global_step_2"]


def test_a_link_to_a_checkpoint_is_the_checkpoint(tmp_path: Path) -> None:
    run = make_run(
        tmp_path / "run",
        [f"checkpoint-{step}/{name}" for step in (2, 4) for name in (*TRAINER, "args.json")],
    )
    link = run / "last-checkpoint"
    link.symlink_to("checkpoint-4")
    found = find_run_listing(link, detect(link).path)
    assert found is not None
    assert (found.program, found.path) == ("ms-swift", run)
    assert [each.name for each in found.checkpoints if each.is_taken] == ["checkpoint-4"]


def test_a_model_beside_the_checkpoints_of_its_run(tmp_path: Path) -> None:
    model = ("model.safetensors", "config.json")
    names = [*below("_actor/global_step2", TAG), "_actor/latest=global_step2"]
    run = make_run(tmp_path, [*names, *below("global_step2_hf", model)])
    found = find_run_listing(run / "global_step2_hf", run / "global_step2_hf")
    assert found is not None
    assert (found.program, found.path) == ("OpenRLHF", run)
    assert [(e.name, e.is_taken) for e in found.checkpoints] == [("global_step2_hf", True)]
    found = find_run_listing(run, detect(run).path)
    assert found is not None
    assert [(e.name, e.is_taken) for e in found.checkpoints] == [("_actor/global_step2", True)]


def test_a_checkpoint_of_another_program_is_in_no_run(tmp_path: Path) -> None:
    verl_run(tmp_path, 2)
    other = make_run(tmp_path / "other", ["model.safetensors"])
    assert find_run_listing(other, other) is None
