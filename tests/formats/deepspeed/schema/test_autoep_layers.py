"""AutoEP's experts over other ranks and expert-parallel ranks, and what files then say of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.formats.copying import write
from tests.formats.deepspeed.describing import contents
from tests.golden_files import DEEPSPEED
from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.formats import read, training_of
from zerotools.formats.deepspeed.schema.autoep_layers import configured_ranks, model_tree_on
from zerotools.formats.deepspeed.schema.ds_config import AS_IS, ZeroSettings
from zerotools.formats.deepspeed.schema.experts import ExpertPlacement
from zerotools.formats.deepspeed.universal.lay_out import lay_out_universal
from zerotools.formats.deepspeed.writing.lay_out import lay_out
from zerotools.formats.deepspeed.writing.lay_out_other_format import lay_out_foreign
from zerotools.io.torchzip.pt_file import TorchFile
from zerotools.ops.conversions.reshard import prepare

STAGE_2, STAGE_3, MUON = CASES = (
    "autoep-z2-bf16-w4",
    "autoep-z3-bf16-w4",
    "autoep-z1-fp32-w2-muon",
)
UNIVERSAL = "autoep-universal-z2-bf16-w2"
W1 = "model.layers.0.mlp.experts.w1"


def golden(case: str) -> Checkpoint:
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


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(("ranks", "experts"), [(2, None), (6, None), (4, 4), (3, 1)])
def test_tensors_are_the_same_on_other_ranks_and_back(
    case: str, ranks: int, experts: int | None, tmp_path: Path
) -> None:
    source = golden(case)
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
    laid_out(golden(STAGE_3), tmp_path / "out", 8, 4)
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
        (3, None, r"2 expert-parallel ranks, and --world-size 3 .* pass --ds-config with another"),
        (3, 3, r"4 experts, which expert_parallel\.autoep_size = 3 does not divide"),
    ],
)
def test_ranks_that_cannot_share_the_experts(
    ranks: int, experts: int | None, why: str, tmp_path: Path
) -> None:
    source = golden(STAGE_2)
    with pytest.raises(BadRequest, match=why):
        lay_out(source, tmp_path / "o", world_size=ranks, settings=experts_on(source, experts))


@pytest.mark.parametrize(("case", "stage"), [(STAGE_2, 3), (STAGE_3, 2)])
def test_experts_in_other_files_are_not_made(case: str, stage: int, tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="convert --to universal for a checkpoint that loads"):
        lay_out(golden(case), tmp_path / "o", world_size=4, settings=ZeroSettings(stage=stage))


def test_a_universal_checkpoint_is_not_cut_for_ranks(tmp_path: Path) -> None:
    source = golden(UNIVERSAL)
    said = r'DeepSpeed 0\.19\.8 loads this .* with "checkpoint": \{"load_universal": true\}'
    with pytest.raises(Unsupported, match=said):
        lay_out_foreign(source, training_of(source), tmp_path / "out", world_size=2)
    with pytest.raises(Unsupported, match=said):  # and it does not name the command above
        prepare(source.origin.path, tmp_path / "out", world_size=2)


@pytest.mark.parametrize("case", [*CASES, UNIVERSAL])
def test_universal_checkpoints_have_all_experts_in_a_file(case: str, tmp_path: Path) -> None:
    source = golden(case)
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
