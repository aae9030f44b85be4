"""Golden checkpoints moved to other stages and settings: the same bytes, elsewhere."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.formats.copying import write
from tests.formats.deepspeed.describing import contents
from tests.golden_files import DEEPSPEED
from tests.matrices import FULL
from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.formats import read, training_of
from zerotools.formats.deepspeed.schema.ds_config import ZeroSettings
from zerotools.formats.deepspeed.writing.lay_out_resharded import is_already_laid_out, lay_out

APART = ("universal", "pipeline", "tensor-parallel", "experts", "autoep", "z0-")
CASES = sorted(
    path.parent for path in DEEPSPEED.glob("*/truth.json") if not path.parent.name.startswith(APART)
)
PARALLEL = ("pipeline-z1-fp32-w4", "tensor-parallel-z1-bf16-w4", "tensor-parallel-z2-fp32-w2")


def named(path: Path) -> str:
    return path.name


def golden(name: str) -> Checkpoint:
    return read(DEEPSPEED / name / "checkpoint")


def moved(source: Checkpoint, out: Path, ranks: int, settings: ZeroSettings) -> Checkpoint:
    return read(write(source, lay_out(source, out, world_size=ranks, settings=settings)))


def masters_and_state(checkpoint: Checkpoint) -> dict[str, tuple[str, bytes]]:
    """Everything but the 16-bit weights, which stage 3 does not keep."""
    return {name: each for name, each in contents(checkpoint).items() if "|param16" not in name}


# Of each case one of three stages by turns: a stage is reached from a third of the cases.
@pytest.mark.parametrize(
    ("case", "stage"),
    [
        pytest.param(
            *(case, stage),
            id=f"{named(case)}-{stage}",
            marks=pytest.mark.full if (number + stage) % 3 else (),
        )
        for number, case in enumerate(CASES)
        for stage in (1, 2, 3)
    ],
)
def test_every_tensor_arrives_at_any_stage(case: Path, stage: int, tmp_path: Path) -> None:
    source = read(case / "checkpoint")
    before = masters_and_state(source)
    # Which ranks make no difference to what a stage is: one number of them for each is enough.
    for ranks in (1, 3) if FULL else ((1, 3)[(CASES.index(case) + stage) % 2],):
        found = moved(source, tmp_path / str(ranks), ranks, ZeroSettings(stage=stage))
        assert masters_and_state(found) == before
        assert found.origin.stage == (stage if found.origin.stage is not None else None)
        assert found.aliases == source.aliases
        assert not found.problems
        ours, theirs = training_of(found), training_of(source)
        assert [group.params for group in ours.groups] == [group.params for group in theirs.groups]
        assert ours.scalars == theirs.scalars
        assert (ours.loss_scale, ours.frozen) == (theirs.loss_scale, theirs.frozen)
    for file in tmp_path.rglob("*_states.pt"):
        with zipfile.ZipFile(file) as archive:
            assert archive.testzip() is None, file


@pytest.mark.parametrize("name", ["z2-bf16-w2", "z2-fp16-w2", "z2-bf16-w2-bf16-masters"])
def test_weights_cast_on_the_way_back_from_stage_3_are_those_of_the_run(
    name: str, tmp_path: Path
) -> None:
    source = golden(name)
    there = moved(source, tmp_path / "there", 3, ZeroSettings(stage=3))
    back = moved(there, tmp_path / "back", 2, ZeroSettings(stage=2))
    assert not any("|param16" in key for key in contents(there))
    assert contents(back) == contents(source)


def test_weights_of_an_fp32_run_are_written_beside_their_masters(tmp_path: Path) -> None:
    source = golden("z3-fp32-w2")
    found = moved(source, tmp_path / "out", 2, ZeroSettings(stage=2))
    model = found.native.mp_shards[0].model
    assert model.module is not None
    data, kept = model.file.path.read_bytes(), contents(found)
    buffers = {name.partition("|")[0] for name in kept if "|buffer" in name}
    for name, stored in model.module.items():
        role = "buffer" if name in buffers else "param"
        expected = kept[f"{found.aliases.get(name, name)}|{role}"][1]
        begin = model.file.first_byte(stored)
        assert data[begin : begin + len(expected)] == expected, name


@pytest.mark.parametrize("limit", [1, 47, 10**9])
def test_sub_groups_are_cut_as_asked_for(limit: int, tmp_path: Path) -> None:
    source = golden("z3-fp32-w2-sub-groups")
    found = moved(source, tmp_path / "out", 2, ZeroSettings(sub_group_size=limit))
    assert contents(found) == contents(source)
    tree = found.native.mp_shards[0].model.fields.tree
    assert tree["ds_config"]["zero_optimization"]["sub_group_size"] == limit
    again = moved(found, tmp_path / "again", 3, ZeroSettings())
    assert contents(again) == contents(source)


@pytest.mark.parametrize("name", ["z1-fp32-w3-round-robin", "z2-bf16-w3-aligned-round-robin"])
def test_round_robin_is_switched_off_and_on(name: str, tmp_path: Path) -> None:
    source = golden(name)
    off = moved(source, tmp_path / "off", 2, ZeroSettings(round_robin=False))
    back = moved(off, tmp_path / "on", 3, ZeroSettings(round_robin=True))
    assert contents(off) == contents(back) == contents(source)
    names = [list(each.native.mp_shards[0].model.groups[0]) for each in (source, off, back)]
    assert names[0] == names[2] != names[1]
    assert list(training_of(off).groups[0].params) == names[1]


def test_elastic_state_becomes_rigid_with_the_configured_options(tmp_path: Path) -> None:
    source = golden("z2-fp32-w2-elastic")
    target = lay_out(source, tmp_path / "out", world_size=2)
    found = read(write(source, target))
    assert contents(found) == contents(source)
    assert not found.native.is_elastic
    options = training_of(found).groups[0].options
    assert (options["lr"], options["betas"], options["eps"]) == (0.01, (0.9, 0.95), 1e-8)
    assert any(
        "elastic optimizer state is written in the rigid form" in note for note in target.notes
    )


def test_elastic_state_without_a_known_optimizer_is_refused(tmp_path: Path) -> None:
    source = golden("z2-fp32-w2-elastic")
    del source.native.mp_shards[0].model.fields.tree["ds_config"]["optimizer"]
    with pytest.raises(BadRequest, match="lacks lr, betas"):
        lay_out(source, tmp_path / "out", world_size=2)


@pytest.mark.parametrize("name", PARALLEL)
def test_model_parallel_ranks_are_each_laid_out_on_their_own(name: str, tmp_path: Path) -> None:
    source = golden(name)
    for ranks in (2, 6, 8):
        found = moved(source, tmp_path / str(ranks), ranks, ZeroSettings())
        assert contents(found) == contents(source)
        assert found.origin.world_size == ranks
        assert not found.problems


def test_a_world_size_that_the_model_parallel_ranks_cannot_share_is_refused(
    tmp_path: Path,
) -> None:
    with pytest.raises(
        BadRequest, match=r"2 model-parallel ranks .* --world-size must be a multiple"
    ):
        lay_out(golden("pipeline-z1-fp32-w4"), tmp_path / "out", world_size=3)
    with pytest.raises(Unsupported, match="does not convert such a checkpoint to stage 3"):
        lay_out(
            golden("tensor-parallel-z1-bf16-w4"),
            tmp_path / "out",
            world_size=4,
            settings=ZeroSettings(stage=3),
        )


def test_the_keys_that_the_resuming_run_needs_are_said(tmp_path: Path) -> None:
    source = golden("z2-bf16-w2")
    target = lay_out(source, tmp_path / "o", world_size=2, settings=ZeroSettings(3, 100))
    wanted = 'the resuming run needs "zero_optimization": {"stage": 3, "sub_group_size": 100}'
    assert wanted in target.notes
    assert [each.what for each in target.dropped] == ["param16"]


def test_a_configuration_counts_in_every_key_and_flags_must_agree(tmp_path: Path) -> None:
    source = golden("z1-fp32-w3-round-robin")
    config = {"zero_optimization": {"stage": 2}}
    found = moved(source, tmp_path / "out", 2, ZeroSettings(ds_config=config))
    zero = found.native.mp_shards[0].model.fields.tree["ds_config"]["zero_optimization"]
    assert (zero["stage"], zero["round_robin_gradients"]) == (2, False)
    assert contents(found) == contents(source)
    with pytest.raises(BadRequest, match=r"resuming run has 2: .*zero_optimization\.stage in"):
        ZeroSettings(stage=3, ds_config=config).settled()
    with pytest.raises(
        BadRequest,
        match="--round-robin is on, but the configuration of the resuming run has off",
    ):
        ZeroSettings(round_robin=True, ds_config=config).settled()
    with pytest.raises(BadRequest, match="has ZeRO stage 0"):
        ZeroSettings(ds_config={}).settled()


def test_settings_of_another_stage_are_refused(tmp_path: Path) -> None:
    zero2, zero3 = golden("z2-fp32-w2"), golden("z3-fp32-w2")
    for source, settings, why in (
        (zero2, ZeroSettings(sub_group_size=5), "--sub-group-size is for stage 3"),
        (zero3, ZeroSettings(round_robin=True), "--round-robin is for stages 1 and 2"),
        (zero2, ZeroSettings(stage=0), "--stage is 0"),
        (zero3, ZeroSettings(sub_group_size=0), "--sub-group-size is 0"),
    ):
        with pytest.raises(BadRequest, match=why):
            lay_out(source, tmp_path / "out", world_size=2, settings=settings)


def test_buffers_in_another_order_than_param_shapes_says_are_refused(tmp_path: Path) -> None:
    copy = tmp_path / "checkpoint"
    shutil.copytree(DEEPSPEED / "z2-bf16-w2" / "checkpoint", copy)
    column = read(copy).native.mp_shards[0]
    stored = column.model.module["cube.weight"]
    with column.model.file.path.open("r+b") as file:
        file.seek(column.model.file.first_byte(stored))
        file.write(b"\x80\x3f")
    with pytest.raises(Unsupported, match=r"cube.weight is not equal to its master"):
        lay_out(read(copy), tmp_path / "out", world_size=3)


def test_an_alignment_that_comes_back_with_the_stage_is_recorded(tmp_path: Path) -> None:
    source = golden("z2-bf16-w3-aligned")
    three = moved(source, tmp_path / "three", 4, ZeroSettings(stage=3))
    back = moved(three, tmp_path / "back", 4, ZeroSettings(stage=1))
    assert masters_and_state(back) == masters_and_state(source)


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("saved", [1, 2, 3])
def test_excluded_frozen_weights_are_in_no_list_and_leave_no_placeholder(
    saved: int, stage: int, tmp_path: Path
) -> None:
    """DeepSpeed looks every frozen weight up in a list that is there, and compares shapes."""
    source = golden(f"z{saved}-bf16-w2-exclude-frozen")
    found = moved(source, tmp_path / "out", 3, ZeroSettings(stage=stage))
    tree = found.native.mp_shards[0].model.fields.tree
    assert tree["frozen_param_shapes"] is tree["frozen_param_fragments"] is None
    shapes = [tensor.shape for tensor in found.native.mp_shards[0].model.module.values()]
    assert stage == 3 or (0,) not in shapes


ADDING_IN_FP32 = {"data_types": {"grad_accum_dtype": "fp32"}}
ROUND_ROBIN = {"zero_optimization": {"stage": 1, "round_robin_gradients": True}}


@pytest.mark.parametrize(
    ("name", "more", "is_dealt"),
    [
        ("bf16-optimizer-w2", {}, True),
        ("bf16-optimizer-w2", ADDING_IN_FP32, False),
        ("z1-bf16-w4", {}, True),
        ("z1-bf16-w4", ADDING_IN_FP32, False),
    ],
)
def test_the_order_is_that_of_the_optimizer_that_the_resuming_run_has(
    name: str, more: dict[str, Any], is_dealt: bool, tmp_path: Path
) -> None:
    """BF16_Optimizer deals no parameters to ranks in turn, whatever the configuration says."""
    source = golden(name)
    config = {**ROUND_ROBIN, **more, "bf16": {"enabled": True}}
    found = moved(source, tmp_path / "out", 3, ZeroSettings(ds_config=config))
    assert contents(found) == contents(source)
    column = found.native.mp_shards[0]
    dealt = [list(shapes) for shapes in column.model.groups]
    plain = [list(group.params) for group in training_of(source).groups]
    assert (dealt != plain) == is_dealt
    assert [list(group.params) for group in training_of(found).groups] == plain


def test_another_alignment_is_a_change() -> None:
    source, bf16 = golden("z2-bf16-w3-aligned"), {"bf16": {"enabled": True}}
    without = {"zero_optimization": {"stage": 2}, **bf16}
    aligned = {"zero_optimization": {"stage": 2, "parameter_alignment": True}, **bf16}
    assert is_already_laid_out(source, 3, ZeroSettings())
    assert is_already_laid_out(source, 3, ZeroSettings(ds_config=aligned))
    assert not is_already_laid_out(source, 3, ZeroSettings(ds_config=without))
    with pytest.raises(BadRequest, match="--sub-group-size is for stage 3"):
        is_already_laid_out(source, 3, ZeroSettings(sub_group_size=10))
