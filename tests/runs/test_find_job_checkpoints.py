import json
from pathlib import Path
from typing import Any

import pytest

from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.runs import find_job_checkpoints
from zerotools.runs.manifest import write_manifest
from zerotools.runs.training_record import (
    RNG_PER_RANK,
    RNG_RESEED,
    DataRecord,
    JobRecord,
    LossScaleRecord,
    ModelRecord,
    OptimizerGroup,
    OptimizerRecord,
    record_to_json,
)

SCALE = LossScaleRecord(
    cur_scale=32768.0,
    dynamic=True,
    cur_iter=40,
    last_overflow_iter=38,
    cur_hysteresis=1,
    delayed_shift=2,
)


def record(step: int = 40, **changes: Any) -> JobRecord:
    fields: dict[str, Any] = {
        "step": step,
        "steps_total": 100,
        "world_size": 2,
        "stage": 3,
        "precision": "bf16",
        "seed": 7,
        "consumed_sequences": step * 12,
        "batch_size": 12,
        "sequence_length": 32,
        "optimizer": OptimizerRecord(
            "adamw", (OptimizerGroup(1e-3, 0.1, (0.9, 0.95), 1e-8, ("a.weight",)),)
        ),
        "model": ModelRecord(trainable=100, frozen=0),
        "replicated": ("optim.a.weight.step",),
        "aliases": {"b.weight": "a.weight"},
        "schedule": {"name": "cosine", "steps": 100},
        "rng": RNG_PER_RANK,
        "data": DataRecord(files=3, tokens=1000),
        "measured": {"loss": 2.5},
        "torch_version": "2.6.0",
        "zerotools_version": "0.1.0",
    }
    return JobRecord(**{**fields, **changes})


def make(output_dir: Path, step: int, **changes: Any) -> Path:
    """A checkpoint as far as this module looks: a record, random number states, a manifest."""
    directory = output_dir / find_job_checkpoints.directory_name(step)
    (directory / find_job_checkpoints.DCP).mkdir(parents=True)
    (directory / find_job_checkpoints.DCP / "__0_0.distcp").write_bytes(b"tensors")
    made = record(step, **changes)
    find_job_checkpoints.write_record(directory, made)
    for rank in range(made.world_size):
        (directory / find_job_checkpoints.rng_name(rank)).write_text("{}")
    write_manifest(directory)
    return directory


def test_a_record_comes_back_as_it_was(tmp_path: Path) -> None:
    find_job_checkpoints.write_record(tmp_path, record())
    assert find_job_checkpoints.read_record(tmp_path) == record()


def test_a_record_without_the_optional_parts_comes_back(tmp_path: Path) -> None:
    plain = record(data=None, torch_version=None, zerotools_version=None, aliases={})
    find_job_checkpoints.write_record(tmp_path, plain)
    assert find_job_checkpoints.read_record(tmp_path) == plain


@pytest.mark.parametrize("scale", [SCALE, LossScaleRecord(cur_scale=128.0, dynamic=False)])
def test_a_loss_scale_comes_back(tmp_path: Path, scale: LossScaleRecord) -> None:
    fp16 = record(precision="fp16", skipped_steps=3, loss_scale=scale)
    find_job_checkpoints.write_record(tmp_path, fp16)
    assert find_job_checkpoints.read_record(tmp_path) == fp16


def test_an_optimizer_has_only_its_own_options(tmp_path: Path) -> None:
    group = OptimizerGroup(1e-3, 0.1, params=("a.weight",), momentum=0.9)
    sgd = record(optimizer=OptimizerRecord("sgd", (group,)))
    path = find_job_checkpoints.write_record(tmp_path, sgd)
    assert find_job_checkpoints.read_record(tmp_path) == sgd
    assert "betas" not in path.read_text()
    assert group.options() == {"lr": 1e-3, "weight_decay": 0.1, "momentum": 0.9}


def test_resharding_changes_the_world_size_and_reseeds() -> None:
    assert record().resharded(3) == record(world_size=3, rng=RNG_RESEED)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"step": -1}, r"job\.json: step is -1, but must be an integer >= 0"),
        ({"step": True}, "step is True"),
        ({"world_size": 0}, "must be an integer >= 1"),
        ({"rng": "fresh"}, 'must be "per-rank" or "reseed"'),
        ({"aliases": {"a": 1}}, "aliases is .*, but must be a table of strings"),
        ({"replicated": "all"}, "replicated is 'all', but must be a list of strings"),
        ({"optimizer": {"name": "adamw", "groups": [{"lr": "x"}]}}, r"optimizer\.groups\[0\]\."),
        ({"model": {"trainable": 1}}, r"model\.frozen is None"),
        ({"format": "other"}, 'does not have "format"'),
        ({"loss_scale": {"cur_scale": 0}}, r"loss_scale\.cur_scale is 0, but must be a finite"),
        (
            {"loss_scale": {"cur_scale": 1, "dynamic": 1}},
            r"loss_scale\.dynamic is 1, but must be true",
        ),
        ({"skipped_steps": None}, "skipped_steps is None"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    path = find_job_checkpoints.write_record(tmp_path, record())
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(BadFile, match=sentence):
        find_job_checkpoints.read_record(tmp_path)


def test_a_later_version_is_unsupported(tmp_path: Path) -> None:
    path = find_job_checkpoints.write_record(tmp_path, record())
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": 2}))
    with pytest.raises(Unsupported, match="version 2, but this zerotools reads 1"):
        find_job_checkpoints.read_record(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{", "[" * 100_000])
def test_a_record_that_is_no_json_object_is_a_bad_file(tmp_path: Path, text: str) -> None:
    (tmp_path / find_job_checkpoints.RECORD).write_text(text)
    with pytest.raises(BadFile):
        find_job_checkpoints.read_record(tmp_path)


def test_names_and_steps_belong_together() -> None:
    assert find_job_checkpoints.directory_name(40) == "step-00000040"
    assert (
        find_job_checkpoints.step_of(find_job_checkpoints.directory_name(123_456_789))
        == 123_456_789
    )
    assert [find_job_checkpoints.step_of(name) for name in ("step-40", "latest", ".tmp-40-ab")] == [
        None
    ] * 3


def test_listing_is_newest_first_and_ignores_everything_else(tmp_path: Path) -> None:
    for name in ("step-00000009", "step-100000000", "step-00000010", ".tmp-11-ab", "other"):
        (tmp_path / name).mkdir()
    (tmp_path / "step-00000099").write_text("a file")
    assert [
        find_job_checkpoints.step_of(path.name)
        for path in find_job_checkpoints.list_checkpoints(tmp_path)
    ] == [
        100000000,
        10,
        9,
    ]
    assert find_job_checkpoints.list_checkpoints(tmp_path / "nowhere") == []


def test_the_newest_that_verifies_is_chosen_and_the_others_named(tmp_path: Path) -> None:
    good = make(tmp_path, 10)
    flipped, unfinished = make(tmp_path, 20), make(tmp_path, 30)
    (flipped / find_job_checkpoints.DCP / "__0_0.distcp").write_bytes(b"tensorZ")
    (unfinished / "MANIFEST.json").unlink()
    choice = find_job_checkpoints.newest_valid(tmp_path)
    assert choice.path == good
    assert choice.record == record(10)
    assert [skipped.path for skipped in choice.skipped] == [unfinished, flipped]
    assert "no MANIFEST.json" in choice.skipped[0].why
    assert "__0_0.distcp has SHA-256" in choice.skipped[1].why


def test_only_checkpoints_above_a_step_are_looked_at(tmp_path: Path) -> None:
    make(tmp_path, 10)
    assert find_job_checkpoints.newest_valid(
        tmp_path, above=10
    ) == find_job_checkpoints.ResumeChoice(None, None)


def test_a_renamed_checkpoint_is_passed_over(tmp_path: Path) -> None:
    make(tmp_path, 10).rename(tmp_path / find_job_checkpoints.directory_name(11))
    choice = find_job_checkpoints.newest_valid(tmp_path)
    assert choice.path is None
    assert "is of step 10, but its directory is of step 11" in choice.skipped[0].why


def test_promised_random_number_states_must_be_there(tmp_path: Path) -> None:
    directory = make(tmp_path, 10)
    (directory / find_job_checkpoints.rng_name(1)).unlink()
    write_manifest(directory)
    with pytest.raises(BadFile, match=r"rank_00001\.json is missing, .* of 2 ranks"):
        find_job_checkpoints.verify_checkpoint_files(directory)


def test_resuming_takes_a_checkpoint_or_a_directory_of_them(tmp_path: Path) -> None:
    make(tmp_path, 10)
    newest = make(tmp_path, 20)
    assert find_job_checkpoints.resolve_resume_from(tmp_path).path == newest
    elsewhere = newest.rename(tmp_path / "resharded")
    assert find_job_checkpoints.resolve_resume_from(elsewhere).path == elsewhere


def test_resuming_from_nothing_is_a_bad_request(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="is not a directory"):
        find_job_checkpoints.resolve_resume_from(tmp_path / "nowhere")
    with pytest.raises(BadRequest, match="is not a checkpoint: it has no"):
        find_job_checkpoints.resolve_resume_from(tmp_path)


def test_resuming_from_damage_is_a_bad_file(tmp_path: Path) -> None:
    (make(tmp_path, 10) / find_job_checkpoints.RECORD).write_text("{}")
    with pytest.raises(
        BadFile, match=r"no checkpoint in .* is complete; the newest has this fault: .*job\.json"
    ):
        find_job_checkpoints.resolve_resume_from(tmp_path)


def test_latest_is_a_hint_that_is_followed_only_to_what_exists(tmp_path: Path) -> None:
    assert find_job_checkpoints.latest_by_hint(tmp_path) is None
    find_job_checkpoints.write_latest(tmp_path, find_job_checkpoints.directory_name(10))
    assert find_job_checkpoints.latest_by_hint(tmp_path) is None
    directory = make(tmp_path, 10)
    assert find_job_checkpoints.latest_by_hint(tmp_path) == directory
    (tmp_path / find_job_checkpoints.LATEST).write_text("../elsewhere\n")
    assert find_job_checkpoints.latest_by_hint(tmp_path) is None


def test_every_field_is_in_the_reference() -> None:
    page = Path(__file__).parents[2] / "docs" / "reference" / "job-checkpoint.md"
    text = page.read_text("utf-8")
    missing = [name for name in json.loads(record_to_json(record())) if f"`{name}`" not in text]
    assert missing == []
