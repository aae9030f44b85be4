"""Shards of two saves, or under one another's names."""

from __future__ import annotations

import shutil
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.formats.deepspeed.damaging import ALL, copied, problems_of, refusals
from tests.formats.deepspeed.reading.test_versions import rewrite
from tests.golden_files import DEEPSPEED
from zerotools.core.errors import Unsupported
from zerotools.formats import read
from zerotools.formats.deepspeed.reading.check_same_save import files_of_one_save, saved_as
from zerotools.io.torchzip.pt_file import TorchFile
from zerotools.io.torchzip.tree_tensors import as_tensor
from zerotools.ops.conversions import consolidate, reshard
from zerotools.ops.conversions.conversion import Conversion, perform_conversion
from zerotools.ops.execution.tile_workers import MemoryBudget

CASES = ["z1-bf16-w4", "z2-fp32-w2", "z3-bf16-w2", "bf16-optimizer-w2", "z2-fp32-w2-elastic"]


def shards(tag: Path) -> list[Path]:
    return sorted(tag.glob("*optim_states.pt"))


def poke(path: Path, name: str, data: bytes) -> None:
    """Overwrite the first tensor called `name` in a file's tree."""
    file = TorchFile.open(path.parent, path.name)
    stored = next(_found(file.tree, name))
    raw = bytearray(path.read_bytes())
    at = file.first_byte(stored)
    raw[at : at + len(data)] = data
    path.write_bytes(raw)


def _found(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        for key, held in value.items():
            first = held[0] if isinstance(held, list) and held else held
            if key == name and as_tensor(first) is not None:
                yield as_tensor(first)
            yield from _found(held, name)
    elif isinstance(value, list):
        for held in value:
            yield from _found(held, name)


@pytest.mark.parametrize("case", CASES)
def test_a_shard_under_another_ranks_name(case: str, tmp_path: Path) -> None:
    tag = copied(case, tmp_path)
    first, second, *_ = shards(tag)
    shutil.copyfile(first, second)
    assert any(f"was saved as {first.stem}.pt" in said for said in problems_of(tag))
    assert refusals(tag, tmp_path / "out", 6).keys() == ALL


def test_a_layer_and_an_expert_under_anothers_name(tmp_path: Path) -> None:
    for case, kind in (("pipeline-z1-fp32-w4", "layer"), ("experts-z2-bf16-w2", "layer_0_exp")):
        tag = copied(case, tmp_path / case)
        first, second, *_ = sorted(tag.glob(f"{kind}*"))
        shutil.copyfile(first, second)
        assert any(f"was saved as {first.stem}.pt" in said for said in problems_of(tag))


def test_a_model_file_under_anothers_name(tmp_path: Path) -> None:
    tag = copied("pipeline-z0-bf16-w2", tmp_path)
    shutil.copyfile(tag / "mp_rank_00_model_states.pt", tag / "mp_rank_01_model_states.pt")
    assert any("was saved as mp_rank_00_model_states.pt" in said for said in problems_of(tag))
    assert refusals(tag, tmp_path / "out").keys() == ALL


@pytest.mark.parametrize(
    "folder", [b"archive", b"a-copy", b"zero_pp_rank_1_mp_rank_00_optim_states"]
)
def test_other_names_of_the_folder_are_not_damage(folder: bytes, tmp_path: Path) -> None:
    """torch calls it `archive` when it writes to an open file; a prefix was added in 0.6.2."""
    tag = copied("z1-bf16-w4", tmp_path)
    path = tag / "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt"
    assert refolded(path, folder)
    assert problems_of(tag) == []


@pytest.mark.parametrize("case", ["z2-bf16-w2", "z2-fp32-w2", "z3-bf16-w2"])
def test_swapped_files_of_what_zerotools_wrote(case: str, tmp_path: Path) -> None:
    """Its archives have the folder that torch gives them, which says whose they are."""
    made = reshard.prepare_reshard(
        DEEPSPEED / case / "checkpoint", tmp_path / "three", world_size=3
    )
    assert isinstance(made, Conversion)
    perform_conversion(made, budget=MemoryBudget(), overwrite=False)
    (tag,) = (path for path in (tmp_path / "three").iterdir() if path.is_dir())
    assert problems_of(tag) == []
    for file in tag.iterdir():
        assert saved_as(TorchFile.open(tag, file.name)) == file.stem
    for pattern in ("*rank_[12]_*_optim_*", "zero_pp_rank_[01]_*_model_*"):
        pair = sorted(tag.glob(pattern))
        for file, content in zip(pair, [file.read_bytes() for file in reversed(pair)], strict=True):
            file.write_bytes(content)
        assert not pair or any(f"was saved as {pair[0].stem}.pt" in p for p in problems_of(tag))
        assert refusals(tag, tmp_path / "out", 6).keys() == ALL


def refolded(path: Path, folder: bytes) -> bool:
    import zipfile

    with zipfile.ZipFile(path) as old:
        records = {info.filename: old.read(info) for info in old.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as new:
        for name, data in records.items():
            new.writestr(f"{folder.decode()}/{name.partition('/')[2]}", data)
    return True


@pytest.mark.parametrize("case", ["z1-bf16-w4", "z2-fp32-w2", "z3-bf16-w2", "bf16-optimizer-w2"])
def test_one_ranks_shard_of_another_step(case: str, tmp_path: Path) -> None:
    tag = copied(case, tmp_path)
    poke(shards(tag)[1], "step", b"\0\0\x40\x40")  # 3.0
    (said,) = problems_of(tag)
    assert "is from another save" in said
    assert "the optimizer's step is 3.0 in the first file and 2.0 in the second" in said
    assert refusals(tag, tmp_path / "out", 6).keys() == ALL


def test_a_shard_of_another_learning_rate_or_loss_scale(tmp_path: Path) -> None:
    """SGD has no step; what a schedule changes tells."""

    def slower(tree: dict[str, Any]) -> None:
        group = tree["optimizer_state_dict"]["base_optimizer_state"]["param_groups"][0]
        group["lr"] = group["lr"] / 2

    def scaled(tree: dict[str, Any]) -> None:
        scaler = tree["optimizer_state_dict"]["loss_scaler"]
        tree["optimizer_state_dict"]["loss_scaler"] = replace(
            scaler, state={**scaler.state, "cur_iter": 99}
        )

    for case, change, what in (
        ("z2-bf16-w2-sgd", slower, "lr of param group 0"),
        ("z2-fp16-w2", scaled, "cur_iter of the loss scaler"),
    ):
        tag = copied(case, tmp_path / case)
        rewrite(shards(tag)[1], change)
        assert any(what in said for said in problems_of(tag))
        assert refusals(tag, tmp_path / "out").keys() == ALL


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("case", ["z2-bf16-w2-sgd", "z2-bf16-w2", "z1-fp32-w2-momentum"])
def test_masters_of_another_save_than_the_weights(case: str, rank: int, tmp_path: Path) -> None:
    """Nothing but the values tells: every rank's part is compared."""
    tag = copied(case, tmp_path)
    poke(shards(tag)[rank], "single_partition_of_fp32_groups", b"\0\0\xc8\x42" * 4)
    said = refusals(tag, tmp_path / "out")
    assert said.keys() == ALL
    assert all("the files are from two saves" in sentence for sentence in said.values())


@pytest.mark.parametrize(
    ("case", "helps"),
    [
        ("z2-bf16-w2", "as they are, use zerotools consolidate --from weights$"),
        ("z2-fp32-w2", r"save torch\.load\('.*/mp_rank_00_model_states\.pt'\)\['module'\]"),
    ],
)
def test_an_average_that_was_swapped_in_can_be_had(case: str, helps: str, tmp_path: Path) -> None:
    tag = copied(case, tmp_path)
    poke(shards(tag)[0], "single_partition_of_fp32_groups", b"\0\0\xc8\x42" * 4)
    with pytest.raises(Unsupported, match=helps):
        consolidate.prepare_export(tag, tmp_path / "out", consolidate.Options())


def test_weights_are_exported_where_masters_are_not_asked_for(tmp_path: Path) -> None:
    tag = copied("z2-bf16-w2-sgd", tmp_path)
    poke(shards(tag)[0], "single_partition_of_fp32_groups", b"\0\0\xc8\x42" * 4)
    consolidate.prepare_export(tag, tmp_path / "out", consolidate.Options(weights_from="weights"))
    with pytest.raises(Unsupported, match="is not equal to its master"):
        consolidate.prepare_export(tag, tmp_path / "out", consolidate.Options())


def test_model_files_of_two_steps(tmp_path: Path) -> None:
    tag = copied("pipeline-z0-bf16-w2", tmp_path)
    rewrite(tag / "mp_rank_01_model_states.pt", lambda tree: tree.update(global_steps=7))
    assert any("of step 7, the second of step 2" in each.message for each in read(tag).problems)
    assert refusals(tag, tmp_path / "out").keys() == ALL


def other_name(mapping: Any) -> Any:
    """The mapping with another name for its last entry."""
    *kept, last = mapping.items()
    return type(mapping)({**dict(kept), f"{last[0]}_before": last[1]})


def test_a_shard_of_another_model(tmp_path: Path) -> None:
    """Of as many elements, so that its partitions fit."""

    def renamed(tree: dict[str, Any]) -> None:
        mappings = tree["optimizer_state_dict"]["param_slice_mappings"]
        mappings[-1] = other_name(mappings[-1])

    for case in ("z1-bf16-w4", "z2-fp32-w2", "bf16-optimizer-w2", "experts-z2-bf16-w2"):
        tag = copied(case, tmp_path / case)
        rewrite(shards(tag)[1], renamed)
        (said,) = problems_of(tag)
        assert f"{shards(tag)[1].name} is from another save than" in said
        assert "_before; take a checkpoint" in said
        assert refusals(tag, tmp_path / f"out-{case}", 6).keys() == ALL


def test_a_model_file_of_other_shapes(tmp_path: Path) -> None:
    """At stage 3, where the files of other ranks are read for frozen parameters."""

    def renamed(tree: dict[str, Any]) -> None:
        tree["param_shapes"][-1] = other_name(tree["param_shapes"][-1])

    tag = copied("z3-bf16-w2", tmp_path)
    rewrite(tag / "zero_pp_rank_1_mp_rank_00_model_states.pt", renamed)
    (said,) = problems_of(tag)
    assert "zero_pp_rank_1_mp_rank_00_model_states.pt is from another save than" in said
    assert "_before; take a checkpoint" in said
    assert refusals(tag, tmp_path / "out", 6).keys() == ALL


OF_ANY_SAVE = {
    "z2-bf16-w2": "",
    "z2-bf16-w2-sgd": "",
    "z1-bf16-w4-tiny-group": "",
    "z3-bf16-w2": "",
    "z3-bf16-w3-adapter": "",
    "z3-bf16-w2-lion": "*_optim_states.pt",
    "z3-fp32-w2-momentum": "*_optim_states.pt",
    "z3-bf16-w2-before-first-step": "*_optim_states.pt",
    "bf16-optimizer-w2": "",
    "pipeline-z1-fp32-w4": "",
    "pipeline-z0-bf16-w2": "",
    "experts-z1-fp32-w4-round-robin": "",
    "tensor-parallel-z1-bf16-w4": "",
}


def others(path: Path) -> set[str]:
    checkpoint = read(path)
    return set(checkpoint.files) - files_of_one_save(checkpoint)


@pytest.mark.parametrize("case", OF_ANY_SAVE)
def test_files_say_their_step_or_hold_weights_of_masters(case: str) -> None:
    path = DEEPSPEED / case / "checkpoint"
    (tag,) = (entry for entry in path.iterdir() if entry.is_dir())
    pattern = OF_ANY_SAVE[case]
    assert others(path) == ({file.name for file in tag.glob(pattern)} if pattern else set())


@pytest.mark.parametrize(
    ("case", "pattern"),
    [("z3-fp32-w2", "*_optim_states.pt"), ("z2-fp32-w2", ""), ("z3-bf16-w3-adapter", "*.pt")],
)
def test_files_that_were_written_to_an_open_file_may_be_any_ranks(
    tmp_path: Path, case: str, pattern: str
) -> None:
    """At stage 3, where no weights tell; model files have parts of frozen weights."""
    shutil.copytree(DEEPSPEED / case / "checkpoint", tmp_path / "checkpoint")
    files = sorted(tmp_path.rglob("*.pt"))
    for file in files:
        as_to_an_open_file(file)
    assert others(tmp_path / "checkpoint") == (
        {file.name for file in files if file.match(pattern)} if pattern else set()
    )


def as_to_an_open_file(file: Path) -> None:
    """As torch.save writes it that gets no name: in the folder `archive`."""
    with zipfile.ZipFile(file) as old:
        records = {info.filename: old.read(info) for info in old.infolist()}
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as new:
        for name, data in records.items():
            new.writestr(f"archive/{name.partition('/')[2]}", data)
