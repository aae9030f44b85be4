"""What runs of other programs become in a DCP: names, drops, numbers, refusals, bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.formats.copying import write
from tests.formats.elements import assert_true
from tests.golden_files import DEEPSPEED, JOB, TORCH
from zerotools import formats
from zerotools.core.checkpoint import Checkpoint, Key, Opaque
from zerotools.core.dtypes import FLOAT32
from zerotools.core.errors import BadRequest
from zerotools.core.target import Dropped, Target
from zerotools.core.training_state import ParamGroup, Scalar, TrainingState
from zerotools.formats.dcp.lay_out_converted import (
    lay_out_dcp as lay_out_training_dcp,
)
from zerotools.formats.dcp.lay_out_resharded import lay_out as lay_out_dcp
from zerotools.formats.torch_optimizers import CLASSES
from zerotools.io.distcp.metadata import read_metadata
from zerotools.ops.verify_source_and_output import read_written_back

STYLES = ("torch", "accelerate", "torchtitan")


def _source(path: Path) -> tuple[Checkpoint, TrainingState]:
    checkpoint = formats.read(path)
    return checkpoint, formats.training_of(checkpoint)


def _deepspeed(case: str) -> tuple[Checkpoint, TrainingState]:
    return _source(DEEPSPEED / case / "checkpoint")


def _written(
    source: Checkpoint, training: TrainingState, out: Path, style: str, world_size: int = 2
) -> tuple[Checkpoint, Target]:
    target = lay_out_training_dcp(source, training, out, world_size=world_size, style=style)
    write(source, target)
    read_written_back(target, out)
    return formats.read(out), target


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize(
    "case",
    ["z2-bf16-w2", "z3-fp16-w2", "z3-fp32-w2-sub-groups", "z1-fp32-w2-amsgrad", "z2-bf16-w3"],
)
def test_every_tensor_of_deepspeed_is_there_bit_for_bit(
    tmp_path: Path, case: str, style: str
) -> None:
    source, training = _deepspeed(case)
    read_back, _ = _written(source, training, tmp_path / "out", style, 3)
    held = {key.role for key in source.tensors} - {"param16"} | {"step"}
    assert_true(read_back, DEEPSPEED / case / "truth.safetensors", roles=held)
    assert read_back.aliases == source.aliases


@pytest.mark.parametrize("style", STYLES)
def test_the_run_reads_back(tmp_path: Path, style: str) -> None:
    """torchtitan's layout tells groups by their options alone, so their order is that of names."""
    source, training = _deepspeed("z2-bf16-w2")
    read_back, _ = _written(source, training, tmp_path / "out", style)
    state = formats.training_of(read_back)
    assert state.scalars == training.scalars
    assert [group.params for group in state.groups] == [g.params for g in training.groups]
    for after, before in zip(state.groups, training.groups, strict=True):
        assert before.options.items() <= after.options.items()
        assert after.options.keys() == CLASSES["AdamW"].defaults.keys()


def _drops(target: Target) -> list[str]:
    return [dropped.what for dropped in target.dropped]


@pytest.mark.parametrize(
    ("case", "dropped"),
    [
        ("z2-fp32-w2", ["steps", "ds_config"]),
        ("z1-bf16-w2-client-state", ["param16", "steps", "ds_config", "client"]),
        (
            "z2-bf16-w3",
            ["param16", "buffer", "frozen", "lr_scheduler", "steps", "ds_config"],
        ),
        ("z2-fp16-w2-static", ["param16", "loss_scale", "steps", "ds_config"]),
    ],
)
def test_what_a_dcp_cannot_hold_is_listed_once(
    tmp_path: Path, case: str, dropped: list[str]
) -> None:
    source, training = _deepspeed(case)
    target = lay_out_training_dcp(source, training, tmp_path / "o", world_size=2, style="torch")
    assert _drops(target) == dropped


def test_a_jobs_random_numbers_and_schedule_are_listed(tmp_path: Path) -> None:
    source, training = _source(JOB)
    read_back, target = _written(source, training, tmp_path / "out", "torch")
    assert _drops(target) == ["steps", "client", "random state"]
    assert read_back.aliases == source.aliases == {"lm_head.weight": "model.embed_tokens.weight"}
    assert (tmp_path / "out" / "config.json").read_bytes() == (JOB / "config.json").read_bytes()


def _paths(directory: Path) -> dict[str, tuple[str | int, ...]]:
    return dict(read_metadata(directory / ".metadata").paths or {})


@pytest.mark.parametrize("case", ["fsdp2-dcp-w3", "fsdp2-torchtitan-w2"])
def test_keys_and_paths_are_those_that_torch_made_of_the_same_run(
    tmp_path: Path, case: str
) -> None:
    """torch's own checkpoint, read and written in its own style, has its keys, in their order."""
    path = TORCH / case / "checkpoint"
    source, training = _source(path)
    style = "torchtitan" if "titan" in case else "accelerate"
    dcp_out = tmp_path / "out"
    _written(source, training, dcp_out, style, source.origin.world_size or 1)
    own = source.origin.path
    for below in ("pytorch_model_fsdp_0", "optimizer_0") if style == "accelerate" else ("",):
        sections = ("lr_scheduler", "train_state", "dataloader")
        wanted = {k: v for k, v in _paths(own / below).items() if v[0] not in sections}
        assert list(_paths(dcp_out / below).items()) == list(wanted.items())
        ours = read_metadata(dcp_out / below / ".metadata")
        torchs = read_metadata(own / below / ".metadata")
        for key, saved in ours.tensors.items():
            assert saved.dtype == torchs.tensors[key].dtype
            assert [box for box, _ in saved.parts] == [box for box, _ in torchs.tensors[key].parts]


@pytest.mark.parametrize("first", STYLES)
@pytest.mark.parametrize("second", STYLES)
def test_any_style_becomes_any_other(tmp_path: Path, first: str, second: str) -> None:
    source, training = _source(TORCH / "fsdp2-dcp-w3" / "checkpoint")
    between, _ = _written(source, training, tmp_path / "a", first, 2)
    last, target = _written(between, formats.training_of(between), tmp_path / "b", second, 4)
    assert_true(last, TORCH / "fsdp2-dcp-w3" / "truth.safetensors")
    assert formats.training_of(last).groups == training.groups
    assert _drops(target) == []


@pytest.mark.parametrize("style", STYLES)
def test_tied_names_share_bytes_and_survive_a_reshard(tmp_path: Path, style: str) -> None:
    """A load plan asks for every name of the state dict, so each has its key."""
    source, training = _deepspeed("z2-bf16-w2")
    between, _ = _written(source, training, tmp_path / "a", style)
    model = tmp_path / "a" / ("pytorch_model_fsdp_0" if style == "accelerate" else "")
    prefix = "" if style == "torchtitan" else "model."
    tensors = read_metadata(model / ".metadata").tensors
    assert tensors[f"{prefix}head.weight"] == tensors[f"{prefix}embed.weight"]
    target = lay_out_dcp(between, tmp_path / "b", world_size=5)
    write(between, target)
    read_written_back(target, tmp_path / "b")
    after = formats.read(tmp_path / "b")
    assert after.aliases == source.aliases
    assert after.origin.world_size == 5
    assert_true(after, DEEPSPEED / "z2-bf16-w2" / "truth.safetensors", roles={"param", "exp_avg"})


def test_names_of_a_tied_hugging_face_model_keep_their_first_part(tmp_path: Path) -> None:
    """On torchtitan's top level every name may begin with "model."."""
    source, training = _source(JOB)
    source = replace(source, aliases={})
    read_back, _ = _written(source, training, tmp_path / "out", "torchtitan")
    assert {key.name for key in read_back.tensors} == {key.name for key in source.tensors}


def test_steps_that_were_plain_numbers_become_torchs_tensors(tmp_path: Path) -> None:
    source, training = _deepspeed("z2-bf16-w2-cpu-adam")
    assert {scalar.dtype for scalar in training.scalars.values()} == {None}
    read_back, _ = _written(source, training, tmp_path / "out", "torch")
    found = formats.training_of(read_back).scalars
    assert found == {key: Scalar(float(s.value), FLOAT32) for key, s in training.scalars.items()}


def test_numbers_of_another_optimizer_stay_what_they_were(tmp_path: Path) -> None:
    source, training = _deepspeed("z3-fp32-w2-cpu-lion")
    read_back, _ = _written(source, training, tmp_path / "out", "accelerate")
    found = formats.training_of(read_back)
    assert found.scalars == training.scalars
    assert found.groups[0].options == training.groups[0].options


def test_weights_alone(tmp_path: Path) -> None:
    source, training = _source(TORCH / "fsdp2-hf-sharded-w2" / "checkpoint")
    read_back, target = _written(source, training, tmp_path / "out", "accelerate")
    assert [path.name for path in (tmp_path / "out").glob("[!.]*")] == ["pytorch_model_fsdp_0"]
    assert read_back.tensors.keys() == source.tensors.keys()
    assert target.notes == ("the output has no optimizer state: load only the model",)


def test_16_bit_weights_without_a_master_are_the_weights(tmp_path: Path) -> None:
    source, _ = _deepspeed("z1-bf16-w2-bf16-all")
    kept = {key: tensor for key, tensor in source.tensors.items() if key.role == "param16"}
    read_back, target = _written(
        replace(source, tensors=kept), TrainingState(), tmp_path / "out", "torch"
    )
    assert {Key(key.name, "param") for key in kept} == read_back.tensors.keys()
    assert _drops(target) == []


def test_what_an_optimizer_needs_and_nothing_says_is_asked_for(tmp_path: Path) -> None:
    source, training = _deepspeed("z2-fp32-w2-elastic")
    with pytest.raises(BadRequest, match=r"give lr, betas, eps, weight_decay$"):
        lay_out_training_dcp(source, training, tmp_path / "o", world_size=1, style="torch")
    given_groups = tuple(
        ParamGroup(g.params, {"lr": 0.1, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.0})
        for g in training.groups
    )
    read_back, _ = _written(
        source, replace(training, groups=given_groups), tmp_path / "out", "torch"
    )
    assert formats.training_of(read_back).groups[0].options["betas"] == (0.9, 0.95)


def test_an_option_that_is_no_plain_value_is_not_taken_for_said(tmp_path: Path) -> None:
    source, training = _deepspeed("z2-fp32-w2")
    (group,) = training.groups
    strange = replace(
        group, options={**group.options, "lr": Opaque("torch", "Tensor"), "x": Opaque("a", "b")}
    )
    with pytest.raises(BadRequest, match=r"give lr$"):
        lay_out_training_dcp(
            source,
            replace(training, groups=(strange,)),
            tmp_path / "o",
            world_size=1,
            style="torch",
        )
    known = replace(strange, options={**strange.options, "lr": 0.5})
    read_back, target = _written(
        source, replace(training, groups=(known,)), tmp_path / "out", "torch"
    )
    assert formats.training_of(read_back).groups[0].options["lr"] == 0.5
    assert Dropped("param_groups", "x: not plain values") in target.dropped


def test_state_of_a_parameter_in_no_group_is_refused(tmp_path: Path) -> None:
    source, training = _deepspeed("z2-fp32-w2")
    (group,) = training.groups
    short = replace(training, groups=(replace(group, params=group.params[1:]),))
    with pytest.raises(BadRequest, match=f"the param group of {group.params[0]}$"):
        lay_out_training_dcp(source, short, tmp_path / "o", world_size=1, style="torch")


def test_state_by_number_is_refused(tmp_path: Path) -> None:
    source, training = _source(TORCH / "training-file" / "checkpoint" / "checkpoint.pt")
    with pytest.raises(BadRequest, match=r"optimizer state of optimizer\.state\.0 and 5 others"):
        lay_out_training_dcp(source, training, tmp_path / "o", world_size=1, style="torch")


@pytest.mark.parametrize(("style", "ranks"), [("fsdp", 2), ("torch", 0)])
def test_bad_requests(tmp_path: Path, style: str, ranks: int) -> None:
    source, training = _deepspeed("z2-fp32-w2")
    with pytest.raises(BadRequest):
        lay_out_training_dcp(source, training, tmp_path / "o", world_size=ranks, style=style)


def test_deepspeeds_adam_decays_as_adamw_does_unless_told_otherwise(tmp_path: Path) -> None:
    source, training = _deepspeed("z3-bf16-w2-bf16-masters")
    config = {"optimizer": {"type": "Adam", "params": {}}}
    for mode, decoupled in (({}, True), ({"adam_w_mode": False}, False)):
        config = {"optimizer": {"type": "Adam", "params": mode}}
        asked = replace(training, optimizer="Adam", ds_config=config)
        out = tmp_path / str(decoupled)
        read_back, _ = _written(source, asked, out, "torch")
        options = formats.training_of(read_back).groups[0].options
        assert options["decoupled_weight_decay"] is decoupled
        assert "bias_correction" not in options


@given(st.integers(1, 40), st.sampled_from(STYLES))
def test_any_number_of_ranks_covers_every_tensor_once(ranks: int, style: str) -> None:
    """read_written_back needs files; the cover is proved by the plan itself."""
    from zerotools.ops.conversions.conversion import with_target_sources
    from zerotools.ops.execution.plan_copies import prove_plan

    source, training = _deepspeed("z3-fp32-w2-sub-groups")
    target = lay_out_training_dcp(source, training, Path("o"), world_size=ranks, style=style)
    assert prove_plan(with_target_sources(source, target), target.checkpoint) > 0
    folders = 2 if style == "accelerate" else 1
    assert len(target.files) == folders * (ranks + 1)
    for tensor in target.carried.values():
        assert len(tensor.chunks) == 1
