"""Checkpoints of other formats, laid out for DeepSpeed: every byte of weights and state."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.formats.copying import write
from tests.formats.deepspeed.describing import contents
from tests.golden_files import DEEPSPEED, TORCH
from zerotools.core.checkpoint import Checkpoint
from zerotools.core.dtypes import BFLOAT16, FLOAT16
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.core.training_state import ParamGroup, TrainingState
from zerotools.formats import read, training_of
from zerotools.formats.dcp.lay_out_converted import lay_out_dcp
from zerotools.formats.deepspeed.schema.ds_config import ZeroSettings
from zerotools.formats.deepspeed.writing.lay_out_converted import lay_out_zero

UNIVERSAL = ("universal-z1-fp32-w2", "universal-z2-bf16-w3", "universal-z3-bf16-w2")
NATIVE = ("z2-bf16-w2", "z3-fp32-w2-sub-groups", "z2-fp16-w2", "z2-bf16-w2-sgd", "z1-fp32-w3")


def write_foreign(
    source: Checkpoint, training: TrainingState, out: Path, ranks: int, settings: ZeroSettings
) -> Checkpoint:
    target = lay_out_zero(source, training, out, world_size=ranks, settings=settings)
    for path in write(source, target).rglob("*_states.pt"):
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None, path
    return read(out)


def state(checkpoint: Checkpoint) -> dict[str, tuple[str, bytes]]:
    return {name: each for name, each in contents(checkpoint).items() if "|param16" not in name}


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("name", UNIVERSAL)
def test_universal_becomes_native(name: str, stage: int, tmp_path: Path) -> None:
    source = read(DEEPSPEED / name / "checkpoint")
    training = training_of(source)
    found = write_foreign(source, training, tmp_path / "out", 3, ZeroSettings(stage=stage))
    assert state(found) == state(source)
    assert found.aliases == source.aliases
    again = training_of(found)
    assert [group.params for group in again.groups] == [group.params for group in training.groups]
    assert again.frozen == training.frozen
    assert (again.steps, again.precision) == (training.steps, training.precision)


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize("name", ["fsdp2-dcp-w3", "fsdp2-torchtitan-w2", "fsdp1-dcp-w2"])
def test_real_torch_runs_become_native(name: str, stage: int, tmp_path: Path) -> None:
    source = read(TORCH / name / "checkpoint")
    config = {"zero_optimization": {"stage": stage, "sub_group_size": 100}}
    settings = ZeroSettings(ds_config=config)
    found = write_foreign(source, training_of(source), tmp_path / "out", 2, settings)
    ours = contents(found)
    for key, (_, data) in contents(source).items():
        name_of, _, role = key.partition("|")
        places = [f"{name_of}|param", f"{name_of}|buffer"] if role == "param" else [key]
        if role != "state":
            assert data in [ours[place][1] for place in places if place in ours], key


@pytest.mark.parametrize("name", NATIVE)
def test_deepspeed_comes_back_from_dcp(name: str, tmp_path: Path) -> None:
    source = read(DEEPSPEED / name / "checkpoint")
    training = training_of(source)
    target = lay_out_dcp(source, training, tmp_path / "dcp", world_size=3, style="torch")
    there = read(write(source, target))
    back = training_of(there)
    config = {**(training.ds_config or {}), "zero_optimization": {"stage": 2}}
    found = write_foreign(there, back, tmp_path / "out", 2, ZeroSettings(ds_config=config))
    ours, theirs = contents(found), contents(source)
    for key, value in theirs.items():
        name_of, _, role = key.partition("|")
        if name_of in {"seen", "layer.running", "layer.mask", "cube.bytes"}:
            assert value in (ours.get(f"{name_of}|buffer"), ours.get(f"{name_of}|param"))
        elif role != "param16":
            assert ours[key] == value, key
    assert training_of(found).scalars == training.scalars


def test_weights_alone_begin_as_fp32_masters_of_a_16_bit_run(tmp_path: Path) -> None:
    source = read(DEEPSPEED / "z2-bf16-w2" / "checkpoint")
    weights = replace(
        source,
        tensors={
            key: source.tensors[key.name, "param16"]  # type: ignore[index]
            for key in source.tensors
            if (key.name, "param16") in source.tensors and key.role == "param"
        },
        aliases={},
    )
    names = tuple(key.name for key in weights.tensors)
    training = TrainingState(groups=(ParamGroup(names, {"lr": 0.1}),), precision=BFLOAT16)
    found = write_foreign(weights, training, tmp_path / "out", 2, ZeroSettings(stage=2))
    given = contents(source)
    for name in names:
        assert found.tensors[name, "param"].dtype.name == "float32"  # type: ignore[index]
        assert contents(found)[f"{name}|param16"] == given[f"{name}|param16"]
    assert not any(key.role.startswith("exp_avg") for key in found.tensors)


def test_what_nothing_says_is_listed(tmp_path: Path) -> None:
    source = read(DEEPSPEED / "z2-bf16-w2" / "checkpoint")
    nothing = TrainingState()
    with pytest.raises(BadRequest) as refused:
        lay_out_zero(source, nothing, tmp_path / "out", world_size=2)
    for words in (
        "--stage or --ds-config",
        "--lr, --betas",
        "the dtype of the computation",
    ):
        assert words in str(refused.value)
    unordered = TrainingState(
        groups=(ParamGroup(("a",), {"lr": 1}),), precision=BFLOAT16, is_ordered=False
    )
    with pytest.raises(BadRequest, match="the order of the parameters in the model"):
        lay_out_zero(source, unordered, tmp_path / "out", world_size=2, settings=ZeroSettings(2))


def test_another_type_than_the_run_had_is_refused(tmp_path: Path) -> None:
    source = read(DEEPSPEED / "universal-z2-bf16-w3" / "checkpoint")
    config = {"zero_optimization": {"stage": 2}, "fp16": {"enabled": True}}
    with pytest.raises(BadRequest, match="trained in bfloat16, but the configuration trains in fl"):
        lay_out_zero(
            source,
            training_of(source),
            tmp_path / "out",
            world_size=2,
            settings=ZeroSettings(ds_config=config),
        )


def test_a_new_fp16_run_begins_with_the_configured_loss_scale(tmp_path: Path) -> None:
    source = read(DEEPSPEED / "universal-z1-fp32-w2" / "checkpoint")
    training = replace(training_of(source), precision=FLOAT16)
    config = {
        "zero_optimization": {"stage": 2},
        "fp16": {"enabled": True, "initial_scale_power": 8, "hysteresis": 3},
    }
    target = lay_out_zero(
        source, training, tmp_path / "out", world_size=2, settings=ZeroSettings(ds_config=config)
    )
    scale = training_of(read(write(source, target))).loss_scale
    assert scale is not None
    assert (scale.scale, scale.dynamic, scale.options["cur_hysteresis"]) == (256.0, True, 3)
    assert (
        "the source has no loss scale: the run starts with the one in the configuration"
        in target.notes
    )


def without_state_of(source: Checkpoint, names: set[str], roles: set[str]) -> Checkpoint:
    kept = {k: t for k, t in source.tensors.items() if k.name not in names or k.role not in roles}
    return replace(source, tensors=kept)


@pytest.mark.parametrize("stage", [2, 3])
def test_a_parameter_that_was_never_stepped_begins_with_zeros(stage: int, tmp_path: Path) -> None:
    whole = read(DEEPSPEED / "universal-z1-fp32-w2" / "checkpoint")
    training = training_of(whole)
    roles = {"exp_avg", "exp_avg_sq", "step"}
    source = without_state_of(whole, {"layer.weight"}, roles)
    scalars = {k: v for k, v in training.scalars.items() if k.name != "layer.weight"}
    out, settings = tmp_path / "out", ZeroSettings(stage=stage)
    found = write_foreign(source, replace(training, scalars=scalars), out, 3, settings)
    ours, theirs = contents(found), contents(whole)
    for key, (_, data) in ours.items():
        begun = key in ("layer.weight|exp_avg", "layer.weight|exp_avg_sq")
        assert data == (bytes(len(data)) if begun else theirs[key][1]), key
    target = lay_out_zero(source, training, out, world_size=3, settings=settings)
    assert any(note.startswith("layer.weight: no state") for note in target.notes)


def test_state_of_one_kind_alone_is_refused(tmp_path: Path) -> None:
    whole = read(DEEPSPEED / "universal-z1-fp32-w2" / "checkpoint")
    source = without_state_of(whole, {"layer.weight"}, {"exp_avg"})
    with pytest.raises(Unsupported, match=r"layer.weight has the optimizer state exp_avg_sq"):
        lay_out_zero(
            source, training_of(whole), tmp_path, world_size=2, settings=ZeroSettings(stage=2)
        )


def test_steps_are_the_optimizers_where_nothing_else_counts(tmp_path: Path) -> None:
    source = read(DEEPSPEED / "universal-z1-fp32-w2" / "checkpoint")
    training = replace(training_of(source), steps=None)
    settings = ZeroSettings(stage=2)
    target = lay_out_zero(source, training, tmp_path / "o", world_size=2, settings=settings)
    found = read(write(source, target))
    assert (found.origin.step, found.origin.tag) == (2, "global_step2")
    assert any(note.startswith("training resumes at step 2") for note in target.notes)
