"""Checkpoints with experts: which rank has which, whatever the number of ranks."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.formats.copying import write
from tests.formats.deepspeed.describing import contents
from tests.formats.deepspeed.reading.test_versions import Change, rewrite
from tests.formats.deepspeed.writing.test_lay_out import described, reshard
from tests.golden_files import DEEPSPEED
from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.formats import read, training_of
from zerotools.formats.deepspeed.schema.ds_config import ZeroSettings
from zerotools.formats.deepspeed.schema.experts import DATA_FIRST, ExpertNaming, ExpertPlacement
from zerotools.formats.deepspeed.writing.lay_out import lay_out
from zerotools.formats.deepspeed.writing.lay_out_other_format import lay_out_foreign
from zerotools.formats.format import WriteOptions
from zerotools.io.torchzip.pt_file import TorchFile
from zerotools.ops.conversions import consolidate
from zerotools.ops.conversions.conversion import Conversion, perform
from zerotools.ops.conversions.reshard import Unchanged, prepare
from zerotools.ops.execution.workers import MemoryBudget

DEFAULT, PYRAMID, DATA_BEFORE = CASES = (
    "experts-z2-bf16-w2",
    "experts-z1-fp32-w4-round-robin",
    "experts-z2-bf16-w4-data-first",
)
LAYER = "mixture.deepspeed_moe.experts.deepspeed_experts."


def golden(name: str) -> Checkpoint:
    return read(DEEPSPEED / name / "checkpoint")


def changed(tmp_path: Path, name: str, change: Change, files: str) -> Checkpoint:
    """A copy of a golden case with another pickle in `files`."""
    shutil.copytree(DEEPSPEED / name / "checkpoint", tmp_path / "changed")
    for path in (tmp_path / "changed").glob(f"*/{files}"):
        rewrite(path, change)
    return read(tmp_path / "changed")


def test_each_rank_has_one_part_of_one_expert_rank() -> None:
    assert [ExpertPlacement(6, 2).of(rank) for rank in range(6)] == [
        (0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2),
    ]  # fmt: skip
    assert [ExpertPlacement(6, 2, data_first=True).of(rank) for rank in range(6)] == [
        (0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2),
    ]  # fmt: skip
    for data_first in (False, True):
        for ranks, expert_ranks in ((1, 1), (6, 1), (6, 2), (6, 3), (6, 6)):
            placement = ExpertPlacement(ranks, expert_ranks, data_first)
            for expert_rank in range(expert_ranks):
                found = [placement.of(rank) for rank in placement.ranks_of(expert_rank)]
                assert found == [(expert_rank, part) for part in range(placement.expert_dp_size)]


def test_layers_may_have_different_numbers_of_experts() -> None:
    local = ["a.deepspeed_experts.1.w", "a.deepspeed_experts.0.w", "b.deepspeed_experts.0.w"]
    naming = ExpertNaming.of(local, [], {})
    renamed = [naming.global_name(name, 1, 2) for name in (*local, "dense.w")]
    assert renamed == [
        "a.deepspeed_experts.3.w",
        "a.deepspeed_experts.2.w",
        "b.deepspeed_experts.1.w",
        "dense.w",
    ]


def test_experts_that_are_frozen_count_too() -> None:
    """Only one of two experts of each rank is in the flat buffers; files have all four."""
    everywhere = [f"a.deepspeed_experts.{number}.w" for number in range(4)]
    naming = ExpertNaming.of(["a.deepspeed_experts.0.w"], everywhere, {})
    assert naming.global_name("a.deepspeed_experts.0.w", 1, 2) == "a.deepspeed_experts.2.w"


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("ranks", [2, 4, 6, 10])
def test_every_tensor_arrives_and_comes_back_as_deepspeed_wrote_it(
    case: str, ranks: int, tmp_path: Path
) -> None:
    source = golden(case)
    there = reshard(source, tmp_path / "there", ranks)
    assert contents(there) == contents(source)
    assert there.origin.world_size == ranks
    assert not there.problems
    assert training_of(there).groups == training_of(source).groups
    assert training_of(there).scalars == training_of(source).scalars
    back = reshard(there, tmp_path / "back", source.origin.world_size or 1)
    for file in source.files:
        assert described(back, file) == described(source, file), file
    for path in tmp_path.rglob("*_states.pt"):
        with zipfile.ZipFile(path) as archive:
            assert archive.testzip() is None, path


def shard(checkpoint: Checkpoint, rank: int) -> dict[str, Any]:
    name = next(name for name in checkpoint.files if f"pp_rank_{rank}_mp_rank_00_optim" in name)
    state: dict[str, Any] = TorchFile.open(checkpoint.root, name).tree["optimizer_state_dict"]
    return state


def test_files_name_experts_by_their_number_on_the_rank(tmp_path: Path) -> None:
    found = reshard(golden(DEFAULT), tmp_path / "out", 6)
    for rank in range(6):
        state = shard(found, rank)
        assert state["partition_count"] == [6, 3]
        experts = state["param_slice_mappings"][1]
        assert {name.removeprefix(LAYER).partition(".")[0] for name in experts} <= {"0", "1"}
    paddings = [shard(found, rank)["group_paddings"] for rank in range(6)]
    # 131 elements over 6 ranks in parts of 22; 220 of each pair of experts over 3 in parts of 74.
    assert paddings == [[0, 0], [0, 0], [0, 0], [0, 0], [0, 2], [1, 2]]


@pytest.mark.parametrize("case", CASES)
def test_the_output_is_verified(case: str, tmp_path: Path) -> None:
    conversion = prepare(DEEPSPEED / case / "checkpoint", tmp_path / "out", world_size=6)
    assert isinstance(conversion, Conversion)
    perform(conversion, budget=MemoryBudget(), overwrite=False, verify=True)
    assert isinstance(prepare(tmp_path / "out", tmp_path / "o", world_size=6), Unchanged)


def test_stages_1_and_2_are_one_another(tmp_path: Path) -> None:
    source = golden(PYRAMID)
    settings = ZeroSettings(stage=2, round_robin=False)
    there = read(write(source, lay_out(source, tmp_path / "a", world_size=2, settings=settings)))
    back = ZeroSettings(stage=1, round_robin=True)
    again = read(write(there, lay_out(there, tmp_path / "b", world_size=4, settings=back)))
    assert contents(there) == contents(again) == contents(source)
    assert training_of(again).groups == training_of(source).groups


def test_the_placement_is_kept_or_taken_from_the_configuration(tmp_path: Path) -> None:
    source = golden(DATA_BEFORE)
    kept = lay_out(source, tmp_path / "kept", world_size=6)
    assert f'the resuming run needs "{DATA_FIRST}": true' in kept.notes
    settings = ZeroSettings(
        ds_config={"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}
    )
    assert isinstance(prepare(source.root, tmp_path / "o", world_size=4), Unchanged)
    assert isinstance(
        prepare(
            source.root,
            tmp_path / "o",
            world_size=4,
            options=WriteOptions(ds_config=settings.ds_config),
        ),
        Conversion,
    )
    target = lay_out(source, tmp_path / "neighbours", world_size=4, settings=settings)
    found = read(write(source, target))
    assert contents(found) == contents(source)
    assert (training_of(found).ds_config or {})[DATA_FIRST] is False
    own = [list(shard(found, r)["param_slice_mappings"][1]) for r in range(4)]
    assert own[0] == own[1] != own[2] == own[3]


def test_ranks_that_cannot_share_the_experts_are_refused(tmp_path: Path) -> None:
    why = r"group 1 has experts over 2 expert-parallel ranks.* --world-size 3 is not a multiple"
    with pytest.raises(BadRequest, match=why):
        lay_out(golden(DEFAULT), tmp_path / "out", world_size=3)


def test_experts_do_not_go_to_stage_3(tmp_path: Path) -> None:
    for settings in (
        ZeroSettings(stage=3),
        ZeroSettings(ds_config={"zero_optimization": {"stage": 3}}),
    ):
        with pytest.raises(Unsupported, match="experts, which zerotools lays out for stages 1 and"):
            lay_out(golden(DEFAULT), tmp_path / "out", world_size=2, settings=settings)


def test_experts_are_not_written_out_of_other_formats(tmp_path: Path) -> None:
    source = golden(DEFAULT)
    training = training_of(source)
    with pytest.raises(
        Unsupported, match=r"DeepSpeed's experts \(mixture.*need separate files and param"
    ):
        lay_out_foreign(source, training, tmp_path / "out", world_size=2)


def test_experts_of_autoep_that_autotp_cut_are_not_read(tmp_path: Path) -> None:
    def fold(tree: dict[str, Any]) -> None:
        tree["folding"] = {"version": 1, "tp_size": 2, "ep_size": 2}

    with pytest.raises(Unsupported, match=r"AutoTP has cut .*tensor_parallel\.autotp_size 1"):
        changed(tmp_path, "autoep-z2-bf16-w4", fold, "mp_rank*")


def test_autoep_that_contradicts_its_groups_is_damage(tmp_path: Path) -> None:
    def spread(tree: dict[str, Any]) -> None:
        for layer in tree["ds_autoep_layers"]:
            layer["ep_size"] = 4
            listed = [{"rank": rank, "experts": [rank]} for rank in range(4)]
            layer["expert_placement"]["ranks"] = listed

    with pytest.raises(BadFile, match=r"shared by 2 expert-parallel ranks, .* has 4"):
        changed(tmp_path, "autoep-z2-bf16-w4", spread, "mp_rank*")


@pytest.mark.parametrize("case", ["autoep-z2-bf16-w4", "autoep-z3-bf16-w4"])
def test_a_lost_rank_of_autoep_is_a_hole(case: str, tmp_path: Path) -> None:
    shutil.copytree(DEEPSPEED / case / "checkpoint", tmp_path / "saved")
    name = "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
    (tmp_path / "saved" / "global_step2" / name).unlink()
    with pytest.raises(BadFile, match=f"{name} is missing"):
        perform(
            consolidate.prepare(tmp_path / "saved", tmp_path / "out", consolidate.Options()),
            budget=MemoryBudget(),
            overwrite=False,
        )


def test_a_lost_expert_of_autoep_is_named(tmp_path: Path) -> None:
    shutil.copytree(DEEPSPEED / "autoep-z2-bf16-w4" / "checkpoint", tmp_path / "saved")
    name = "layer_1_expert_2_mp_rank_00_model_states.pt"
    (tmp_path / "saved" / "global_step2" / name).unlink()
    (problem,) = read(tmp_path / "saved").problems
    assert f"{name} is missing; the layer has 4 experts" in problem.message


def test_elastic_state_does_not_say_which_groups_have_experts(tmp_path: Path) -> None:
    def elastic(tree: dict[str, Any]) -> None:
        inner = tree["optimizer_state_dict"]
        inner["base_optimizer_state"] = list(inner["base_optimizer_state"]["state"].values())

    source = changed(tmp_path, DEFAULT, elastic, "*optim_states.pt")
    with pytest.raises(Unsupported, match="save it without elastic_checkpoint"):
        lay_out(source, tmp_path / "out", world_size=4)


def test_a_placement_that_the_configuration_hides_is_noticed(tmp_path: Path) -> None:
    """The 16-bit weights of the experts are in files that name them over all ranks."""

    def hide(tree: dict[str, Any]) -> None:
        del tree["ds_config"][DATA_FIRST]

    source = changed(tmp_path, DATA_BEFORE, hide, "mp_rank*")
    with pytest.raises(Unsupported, match=r"layer_0_expert_\d_mp_rank_00.* is not the bfloat16"):
        lay_out(source, tmp_path / "out", world_size=2)


def test_groups_that_are_one_and_shared_differently_are_damage(tmp_path: Path) -> None:
    def join(tree: dict[str, Any]) -> None:
        inner = tree["optimizer_state_dict"]["base_optimizer_state"]
        inner["param_groups"] = [{**inner["param_groups"][0], "params": [0, 1]}]

    source = changed(tmp_path, DEFAULT, join, "*optim_states.pt")
    with pytest.raises(BadFile, match=r"groups \[0, 1\] are one param group, but are shared"):
        lay_out(source, tmp_path / "out", world_size=4)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_missing_rank_is_named(rank: int, tmp_path: Path) -> None:
    shutil.copytree(DEEPSPEED / DEFAULT / "checkpoint", tmp_path / "saved")
    name = f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
    (tmp_path / "saved" / "global_step2" / name).unlink()
    with pytest.raises(BadFile, match=f"{name} is missing"):
        prepare(tmp_path / "saved", tmp_path / "out", world_size=4)
