"""What `ds_autoep_layers` says, and what it cannot say."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tests.formats.copying import write
from tests.formats.deepspeed.describing import contents
from tests.formats.deepspeed.reading.test_versions import Change, rewrite
from tests.formats.deepspeed.writing.test_lay_out_resharded import described, reshard
from tests.golden_files import DEEPSPEED
from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.formats import read, training_of
from zerotools.formats.deepspeed.schema.ds_config import AS_IS, ZeroSettings
from zerotools.formats.deepspeed.schema.expert_parallel import (
    DATA_FIRST,
    ExpertBlock,
    ExpertNaming,
    ExpertPlacement,
    StackedExperts,
    configured_ranks,
    model_tree_on,
    stacked_experts_of,
)
from zerotools.formats.deepspeed.universal.lay_out import lay_out_universal
from zerotools.formats.deepspeed.writing.lay_out_converted import lay_out_zero
from zerotools.formats.deepspeed.writing.lay_out_resharded import lay_out
from zerotools.formats.format import WriteOptions
from zerotools.io.torchzip.pt_file import TorchFile
from zerotools.ops.conversions import consolidate
from zerotools.ops.conversions.conversion import Conversion, perform_conversion
from zerotools.ops.conversions.reshard import Unchanged, prepare_reshard
from zerotools.ops.execution.tile_workers import MemoryBudget

PATH = Path("run/mp_rank_00_model_states.pt")
PREFIX = "model.layers.0.mlp.experts"


def layer(*ranks: list[int], **changes: Any) -> dict[str, Any]:
    """An entry of four experts, placed on `ranks` where there are any."""
    found: dict[str, Any] = {"expert_key_prefix": PREFIX, "num_experts": 4, "ep_size": 2}
    if ranks:
        listed = [{"rank": rank, "experts": own} for rank, own in enumerate(ranks)]
        found["expert_placement"] = {"version": 1, "ranks": listed}
    return found | changes


def test_experts_are_placed_as_listed_or_one_behind_another() -> None:
    for entry, firsts in (
        (layer(), (0, 2)),
        (layer([0, 1], [2, 3]), (0, 2)),
        (layer([2, 3], [0, 1]), (2, 0)),
    ):
        blocks = stacked_experts_of(PATH, [entry]).blocks(f"{PREFIX}.w2")
        assert blocks == tuple(ExpertBlock(first, 2, 4) for first in firsts)
    assert stacked_experts_of(PATH, None) == stacked_experts_of(PATH, []) == StackedExperts()


def test_names_of_files_are_of_one_expert() -> None:
    experts = stacked_experts_of(PATH, [layer()])
    assert experts.of_file(f"{PREFIX}.w1.3") == (f"{PREFIX}.w1", ExpertBlock(3, 1, 4))
    for name in (f"{PREFIX}.w1", f"{PREFIX}.w1.4", f"{PREFIX}.w1.x", "model.layers.1.mlp.w1.0"):
        assert experts.of_file(name) is None
    assert experts.whole_shape(f"{PREFIX}.w1", (2, 6, 8)) == (4, 6, 8)
    assert experts.whole_shape("model.norm.weight", (2,)) == (2,)


def test_second_names_of_a_router_are_its_own() -> None:
    experts = stacked_experts_of(PATH, [layer()])
    first, second = "model.layers.0.mlp.router.gate.weight", "model.layers.0.mlp.gate.gate.weight"
    others = ["model.layers.0.mlp.shared_experts.gate_proj.weight", "model.norm.weight"]
    assert experts.routers([first, second, *others]) == {second: first}
    assert experts.routers([second, *others]) == {}


@pytest.mark.parametrize(
    ("entry", "said"),
    [
        ("damaged", "is not a list of layers"),
        ({"moe_layer_id": 0}, "a layer in ds_autoep_layers has no expert_key_prefix"),
        (layer(num_experts=None), "num_experts of .* is None"),
        (layer(ep_size=True), "ep_size of .* is True"),
        (layer([0, 1], [2, 3], ep_size=3), r"on the ranks \[0, 1\], but its ep_size is 3"),
        (layer([0, 1], [1, 2]), "each of the 4 experts .* must be on one"),
        (layer([0, 1], [2]), "each of the 4 experts"),
        (layer(num_experts=5), "each of the 5 experts"),
    ],
)
def test_what_contradicts_itself_is_damage(entry: Any, said: str) -> None:
    with pytest.raises(BadFile, match=said):
        stacked_experts_of(PATH, [entry])


@pytest.mark.parametrize("ranks", [([0, 2], [1, 3]), ([0, 1, 2], [3])])
def test_other_placements_are_refused_by_name(ranks: tuple[list[int], ...]) -> None:
    with pytest.raises(Unsupported, match=r"has experts \[\d.*report it"):
        stacked_experts_of(PATH, [layer(*ranks)])


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
    conversion = prepare_reshard(DEEPSPEED / case / "checkpoint", tmp_path / "out", world_size=6)
    assert isinstance(conversion, Conversion)
    perform_conversion(conversion, budget=MemoryBudget(), overwrite=False, verify=True)
    assert isinstance(prepare_reshard(tmp_path / "out", tmp_path / "o", world_size=6), Unchanged)


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
    assert isinstance(prepare_reshard(source.root, tmp_path / "o", world_size=4), Unchanged)
    assert isinstance(
        prepare_reshard(
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
    why = r"group 1 has experts over 2 expert-parallel ranks.* --world-size must be a multiple of 2"
    with pytest.raises(BadRequest, match=why):
        lay_out(golden(DEFAULT), tmp_path / "out", world_size=3)


def test_experts_do_not_go_to_stage_3(tmp_path: Path) -> None:
    for settings in (
        ZeroSettings(stage=3),
        ZeroSettings(ds_config={"zero_optimization": {"stage": 3}}),
    ):
        with pytest.raises(
            Unsupported, match="experts, which zerotools writes only for stages 1 and"
        ):
            lay_out(golden(DEFAULT), tmp_path / "out", world_size=2, settings=settings)


def test_experts_are_not_written_out_of_other_formats(tmp_path: Path) -> None:
    source = golden(DEFAULT)
    training = training_of(source)
    with pytest.raises(
        Unsupported, match=r"DeepSpeed's experts \(mixture.*need separate files and param"
    ):
        lay_out_zero(source, training, tmp_path / "out", world_size=2)


def test_experts_of_autoep_that_autotp_cut_are_not_read(tmp_path: Path) -> None:
    def fold(tree: dict[str, Any]) -> None:
        tree["folding"] = {"version": 1, "tp_size": 2, "ep_size": 2}

    with pytest.raises(Unsupported, match=r"AutoTP also split .*tensor_parallel\.autotp_size 1"):
        changed(tmp_path, "autoep-z2-bf16-w4", fold, "mp_rank*")


def test_autoep_that_contradicts_its_groups_is_damage(tmp_path: Path) -> None:
    def spread(tree: dict[str, Any]) -> None:
        for layer in tree["ds_autoep_layers"]:
            layer["ep_size"] = 4
            listed = [{"rank": rank, "experts": [rank]} for rank in range(4)]
            layer["expert_placement"]["ranks"] = listed

    with pytest.raises(BadFile, match=r"divided among 2 expert-parallel ranks, .* has 4"):
        changed(tmp_path, "autoep-z2-bf16-w4", spread, "mp_rank*")


@pytest.mark.parametrize("case", ["autoep-z2-bf16-w4", "autoep-z3-bf16-w4"])
def test_a_lost_rank_of_autoep_is_a_hole(case: str, tmp_path: Path) -> None:
    shutil.copytree(DEEPSPEED / case / "checkpoint", tmp_path / "saved")
    name = "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
    (tmp_path / "saved" / "global_step2" / name).unlink()
    with pytest.raises(BadFile, match=f"{name} is missing"):
        perform_conversion(
            consolidate.prepare_export(tmp_path / "saved", tmp_path / "out", consolidate.Options()),
            budget=MemoryBudget(),
            overwrite=False,
        )


def test_a_lost_expert_of_autoep_is_named(tmp_path: Path) -> None:
    shutil.copytree(DEEPSPEED / "autoep-z2-bf16-w4" / "checkpoint", tmp_path / "saved")
    name = "layer_1_expert_2_mp_rank_00_model_states.pt"
    (tmp_path / "saved" / "global_step2" / name).unlink()
    (problem,) = read(tmp_path / "saved").problems
    assert f"{name} is missing, but the layer has 4 experts" in problem.message


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
    with pytest.raises(
        Unsupported, match=r"layer_0_expert_\d_mp_rank_00.* is not equal to its master"
    ):
        lay_out(source, tmp_path / "out", world_size=2)


def test_groups_that_are_one_and_shared_differently_are_damage(tmp_path: Path) -> None:
    def join(tree: dict[str, Any]) -> None:
        inner = tree["optimizer_state_dict"]["base_optimizer_state"]
        inner["param_groups"] = [{**inner["param_groups"][0], "params": [0, 1]}]

    source = changed(tmp_path, DEFAULT, join, "*optim_states.pt")
    with pytest.raises(
        BadFile, match=r"groups \[0, 1\] belong to one param group, but are divided"
    ):
        lay_out(source, tmp_path / "out", world_size=4)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_missing_rank_is_named(rank: int, tmp_path: Path) -> None:
    shutil.copytree(DEEPSPEED / DEFAULT / "checkpoint", tmp_path / "saved")
    name = f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
    (tmp_path / "saved" / "global_step2" / name).unlink()
    with pytest.raises(BadFile, match=f"{name} is missing"):
        prepare_reshard(tmp_path / "saved", tmp_path / "out", world_size=4)


STAGE_2, STAGE_3, MUON = AUTOEP_CASES = (
    "autoep-z2-bf16-w4",
    "autoep-z3-bf16-w4",
    "autoep-z1-fp32-w2-muon",
)
UNIVERSAL = "autoep-universal-z2-bf16-w2"
W1 = "model.layers.0.mlp.experts.w1"


def autoep_golden(case: str) -> Checkpoint:
    return read(DEEPSPEED / case / "checkpoint")


def tree_of(directory: Path, name: str) -> Any:
    (path,) = directory.glob(f"*/{name}")
    return TorchFile.open(path.parent, path.name).tree


def experts_on(source: Checkpoint, ranks: int | None) -> ZeroSettings:
    """The configuration of the run, with other expert-parallel ranks."""
    if ranks is None:
        return AS_IS
    config = dict(training_of(source).ds_config or {})
    config["expert_parallel"] = {**config["expert_parallel"], "autoep_size": ranks}
    return ZeroSettings(ds_config=config)


def laid_out(source: Checkpoint, out: Path, ranks: int, experts: int | None = None) -> Checkpoint:
    settings = experts_on(source, experts)
    return read(write(source, lay_out(source, out, world_size=ranks, settings=settings)))


@pytest.mark.parametrize("case", AUTOEP_CASES)
@pytest.mark.parametrize(("ranks", "experts"), [(2, None), (6, None), (4, 4), (3, 1)])
def test_tensors_are_the_same_on_other_ranks_and_back(
    case: str, ranks: int, experts: int | None, tmp_path: Path
) -> None:
    source = autoep_golden(case)
    before = contents(source)
    there = laid_out(source, tmp_path / "there", ranks, experts)
    assert contents(there) == before
    assert there.origin.world_size == ranks
    assert not there.problems
    config = training_of(there).ds_config or {}
    assert config["expert_parallel"]["autoep_size"] == (experts or 2)
    if case == STAGE_3 and experts == 4:
        back = laid_out(there, tmp_path / "back", 4, 2)
        assert contents(back) == before
        for rank in range(4):  # as DeepSpeed itself saved them
            name = f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt"
            files = [DEEPSPEED / case / "checkpoint", tmp_path / "back"]
            saved, ours = (tree_of(each, name) for each in files)
            assert ours["ds_autoep_layers"] == saved["ds_autoep_layers"]
            assert ours["param_shapes"] == saved["param_shapes"]
            name = f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
            saved, ours = (tree_of(each, name)["optimizer_state_dict"] for each in files)
            assert ours["ds_zero_partition_groups"] == saved["ds_zero_partition_groups"]
            groups = [each["optimizer_state_dict"]["param_groups"] for each in (saved, ours)]
            assert groups[0] == groups[1]


def test_files_name_the_experts_of_their_rank(tmp_path: Path) -> None:
    laid_out(autoep_golden(STAGE_3), tmp_path / "out", 8, 4)
    for rank in range(8):
        tree = tree_of(tmp_path / "out", f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
        universal = tree["universal_checkpoint_info"]["ds_autoep_layers"]
        for layer in (*tree["ds_autoep_layers"], *universal):
            assert (layer["ep_rank"], layer["expert_data_parallel_rank"]) == (rank % 4, rank // 4)
            assert (layer["global_expert_start"], layer["global_expert_end"]) == (
                rank % 4,
                rank % 4 + 1,
            )
            assert (layer["ep_size"], layer["ep_group_name"]) == (4, "ep_size_4")
            placed = layer["affine_maps"]["params"][layer["expert_key_prefix"] + ".w1"]["ranks"]
            assert placed[3]["pieces"][0]["source"] == [3 * 6 * 8, [48, 8, 1]]
        assert tree["param_shapes"][1][W1] == (1, 6, 8)
        name = f"bf16_zero_pp_rank_{rank}_mp_rank_00_optim_states.pt"
        inner = tree_of(tmp_path / "out", name)["optimizer_state_dict"]
        experts = inner["ds_zero_partition_groups"][1]
        assert experts["partition_ranks"] == [rank % 4, rank % 4 + 4]
        assert inner["optimizer_state_dict"]["param_groups"][1]["name"] == "ep_size_4"


def test_keys_that_a_version_did_not_write_are_not_added() -> None:
    entry = {"expert_key_prefix": "a.experts", "num_experts": 4, "num_local_experts": 2}
    placement = ExpertPlacement(4, 4)
    for key in ("ds_autoep_layers", "autoep_layers"):
        found = model_tree_on({key: [entry], "module": {}}, placement, 1)
        assert found == {key: [{**entry, "num_local_experts": 1}], "module": {}}


def test_a_map_that_is_none_stays_as_it_is() -> None:
    maps = {"params": {"w1": {"logical_shape": [4, {}], "ranks": {}}, "w2": 5}}
    entry = {"expert_key_prefix": "a.experts", "num_experts": 4, "affine_maps": maps}
    (found,) = model_tree_on({"ds_autoep_layers": [entry]}, ExpertPlacement(4, 4), 1).values()
    assert found[0]["affine_maps"] == maps


def test_the_configuration_says_how_many_expert_ranks() -> None:
    assert configured_ranks(None) is configured_ranks({}) is None
    assert configured_ranks({"expert_parallel": {"enabled": True}}) == 1
    assert configured_ranks({"expert_parallel": {"enabled": True, "autoep_size": 4}}) == 4
    assert configured_ranks({"expert_parallel": {"enabled": False, "autoep_size": 4}}) is None


@pytest.mark.parametrize(
    ("ranks", "experts", "why"),
    [
        (3, None, r"2 expert-parallel ranks, but --world-size 3 .* pass --ds-config with another"),
        (3, 3, r"4 experts, which expert_parallel\.autoep_size = 3 does not divide"),
    ],
)
def test_ranks_that_cannot_share_the_experts(
    ranks: int, experts: int | None, why: str, tmp_path: Path
) -> None:
    source = autoep_golden(STAGE_2)
    with pytest.raises(BadRequest, match=why):
        lay_out(source, tmp_path / "o", world_size=ranks, settings=experts_on(source, experts))


@pytest.mark.parametrize(("case", "stage"), [(STAGE_2, 3), (STAGE_3, 2)])
def test_experts_in_other_files_are_not_made(case: str, stage: int, tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="convert --to universal for a checkpoint that loads"):
        lay_out(
            autoep_golden(case), tmp_path / "o", world_size=4, settings=ZeroSettings(stage=stage)
        )


def test_a_universal_checkpoint_is_not_cut_for_ranks(tmp_path: Path) -> None:
    source = autoep_golden(UNIVERSAL)
    said = r'DeepSpeed 0\.19\.8 loads this .* with "checkpoint": \{"load_universal": true\}'
    with pytest.raises(Unsupported, match=said):
        lay_out_zero(source, training_of(source), tmp_path / "out", world_size=2)
    with pytest.raises(Unsupported, match=said):  # and it does not name the command above
        prepare_reshard(source.origin.path, tmp_path / "out", world_size=2)


@pytest.mark.parametrize("case", [*AUTOEP_CASES, UNIVERSAL])
def test_universal_checkpoints_have_all_experts_in_a_file(case: str, tmp_path: Path) -> None:
    source = autoep_golden(case)
    target = lay_out_universal(source, training_of(source), tmp_path / "out")
    found = read(write(source, target))
    assert contents(found) == contents(source)
    assert not found.problems
    marks = {"cat_dim": 0, "is_expert_param": True, "ep_num_experts": 4}
    for state in [path.name for path in (tmp_path / "out").glob(f"*/zero/{W1}/*.pt")]:
        if state != "step.pt":
            ours = tree_of(tmp_path / "out", f"zero/{W1}/{state}")
            assert {key: value for key, value in ours.items() if key != "param"} == marks
    ours = tree_of(tmp_path / "out", "mp_rank_00_model_states.pt")
    assert ours["num_experts"] == [4, 4]
    assert next(group[W1] for group in ours["param_shapes"] if W1 in group) == (2, 6, 8)
    assert [layer["expert_key_prefix"] for layer in ours["ds_autoep_layers"]] == [
        f"model.layers.{number}.mlp.experts" for number in range(2)
    ]
