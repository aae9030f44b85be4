"""`convert --to job`: what a job resumes from, made of what another program saved."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.formats.elements import elements
from tests.golden_files import DEEPSPEED, FOREIGN, JOB, TORCH
from zerotools import formats
from zerotools.core.checkpoint import Key
from zerotools.core.errors import BadRequest
from zerotools.ops.conversions.conversion import Conversion, perform_conversion
from zerotools.ops.conversions.convert_foreign_to_job import prepare_job
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.resume_from_other_program.foreign_run import was_made_elsewhere
from zerotools.runs import find_job_checkpoints

MASTERS = FOREIGN / "deepspeed-z2-bf16" / "checkpoint"
NUMBERED = FOREIGN / "hf-trainer" / "checkpoint"


def written(path: Path, out: Path, **options: Any) -> Conversion:
    done = prepare_job(path, out, options)
    perform_conversion(done, budget=MemoryBudget(), overwrite=False, verify=True)
    return done


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Conversion]:
    place = tmp_path_factory.mktemp("made") / "job"
    return place, written(MASTERS, place, world_size=3)


def test_every_tensor_is_that_of_the_source(made: tuple[Path, Conversion]) -> None:
    source, target = formats.read(MASTERS), formats.read(made[0])
    kept = [key for key in source.tensors if key.role != "param16"]
    assert set(target.tensors) == set(kept)
    for key in kept:
        assert target.tensors[key].dtype.name == "float32"
        assert np.array_equal(elements(target, key), elements(source, key).astype(np.float32))
    said, run = formats.training_of(target), formats.training_of(source)
    assert [group.params for group in said.groups] == [group.params for group in run.groups]


def test_it_is_complete_and_says_what_it_is_made_of(made: tuple[Path, Conversion]) -> None:
    record = find_job_checkpoints.verify_checkpoint_files(made[0])
    assert (record.step, record.world_size, record.rng) == (3, 3, "reseed")
    assert (record.made_from, record.precision) == ("DeepSpeed ZeRO", "bf16")
    assert [group.weight_decay for group in record.optimizer.groups] == [0.1, 0.0]
    assert record.optimizer.name == "adamw"
    assert record.model.trainable == 1592
    assert all(flat.endswith(".step") for flat in record.replicated)
    assert was_made_elsewhere(made[0])
    assert not was_made_elsewhere(JOB)
    dropped = {each.what for each in made[1].target.dropped}
    assert dropped == {"param16", "ds_config"}
    assert any("it does not record the order of the data" in x for x in made[1].notes)


def test_state_by_number_needs_the_names_in_order(tmp_path: Path) -> None:
    with pytest.raises(
        BadRequest,
        match=r"has numbers instead of weight names .*state \(.* --order model if .* --order FILE",
    ):
        prepare_job(NUMBERED, tmp_path / "out", {})
    names = [key.name for key in formats.read(NUMBERED).tensors if key.role == "param"]
    order = tmp_path / "order.txt"
    order.write_text("\n".join([*names[1:], "head"]))
    with pytest.raises(BadRequest, match="--order has head, which is not a parameter of"):
        prepare_job(NUMBERED, tmp_path / "out", {"order": order})
    order.write_text("\n".join(names[1:]))
    with pytest.raises(BadRequest, match=r"state of 21 parameters .*, but the order has 20 names"):
        prepare_job(NUMBERED, tmp_path / "out", {"order": order})


@pytest.mark.torch
def test_state_of_experts_gets_the_names_of_the_model_in_memory(tmp_path: Path) -> None:
    done = written(FOREIGN / "hf-trainer-experts" / "checkpoint", tmp_path / "out", order="model")
    assert any("the weights get the layout hf-fused" in note for note in done.notes)
    found = formats.read(tmp_path / "out")
    key = Key("model.layers.1.mlp.experts.gate_up_proj", "exp_avg")
    assert found.tensors[key].shape == found.tensors[Key(key.name, "param")].shape


@pytest.mark.parametrize(
    ("path", "options", "said"),
    [
        (JOB, {}, "is already a checkpoint of a job"),
        (MASTERS, {"stage": 2}, "--to job does not take --stage; leave it out"),
        (MASTERS, {"world_size": 0}, "--world-size is 0"),
        (MASTERS, {"lr": 0.1}, "leave --lr out"),
        (DEEPSPEED / "z3-bf16-w2-lion" / "checkpoint", {}, "jobs do not have this optimizer"),
        (DEEPSPEED / "z2-fp32-w2-rmsprop" / "checkpoint", {}, "jobs do not have this optimizer"),
        (DEEPSPEED / "z0-fp32-w2-before-first-step" / "checkpoint", {}, "optimizer state"),
    ],
)
def test_what_no_job_goes_on_from_is_refused(
    tmp_path: Path, path: Path, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(BadRequest) as error:
        prepare_job(path, tmp_path / "out", options)
    assert said in str(error.value)


def test_optimizer_state_without_its_weights_is_refused(tmp_path: Path) -> None:
    alone = TORCH / "fsdp2-dcp-w3" / "checkpoint" / "optimizer_0"
    with pytest.raises(BadRequest, match="optimizer state for weights that are not in it"):
        prepare_job(alone, tmp_path / "out", {})


def test_a_checkpoint_of_a_job_of_engine_deepspeed_keeps_the_jobs_record(tmp_path: Path) -> None:
    source = tmp_path / "step-00000003"
    place = source / "global_step3"
    place.mkdir(parents=True)
    for file in (MASTERS / "global_step3").iterdir():
        (place / file.name).write_bytes(file.read_bytes())
    tree = json.loads((JOB / "job.json").read_text())
    tree |= {"engine": "deepspeed", "consumed_sequences": 77}
    (source / "job.json").write_text(json.dumps(tree))
    written(place, tmp_path / "out")
    record = find_job_checkpoints.verify_checkpoint_files(tmp_path / "out")
    assert (record.engine, record.made_from, record.consumed_sequences) == ("torch", None, 77)
    assert Key("model.norm.weight", "exp_avg") in formats.read(tmp_path / "out").tensors
