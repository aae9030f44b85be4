"""Swap files of NVMe, as DeepSpeed 0.19.8 saves them; `test_golden` compares all their values."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.formats.copying import write
from tests.formats.deepspeed.damaging import copied, problems_of, refusals
from tests.formats.deepspeed.describing import contents
from tests.formats.deepspeed.reading.test_versions import rewrite
from tests.golden_files import DEEPSPEED
from tests.ops.thinning.made import thinned
from zerotools.core.checkpoint import Opaque, Problem
from zerotools.core.errors import Unsupported
from zerotools.core.thinning_changes import Keep
from zerotools.formats import read
from zerotools.formats.deepspeed.partitioning.read_nvme_swap_files import (
    swap_files,
    with_swap_files,
)
from zerotools.formats.deepspeed.schema.optim_states import parse_optim_states
from zerotools.formats.deepspeed.writing.lay_out_resharded import lay_out
from zerotools.io.torchzip.pt_file import TorchFile

CASE = "z3-bf16-w2-nvme"
FIRST = "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"
NUMELS = (90, 20, 17)
"""Elements of the sub-groups on each rank; the last is too small to be swapped."""


def renamed(value: Any, names: Mapping[str, str]) -> Any:
    """A tree with other names of swap files; a name that is mapped to nothing is left out."""
    if isinstance(value, dict):
        return {key: renamed(each, names) for key, each in value.items()}
    if isinstance(value, list):
        return [renamed(each, names) for each in value]
    if not isinstance(value, Opaque) or value.name != "_rebuild_from_type_v2":
        return value
    *args, state = value.args
    name = names.get(state["ds_id"], state["ds_id"])
    return replace(value, args=(*args, {"ds_id": name} if name else {}))


def rename_in(tag: Path, names: Mapping[str, str]) -> None:
    for path in tag.glob("*optim_states.pt"):
        rewrite(path, lambda tree: tree.update(renamed(tree, names)))


def test_all_that_lies_in_swap_files_is_among_the_files() -> None:
    found = read(DEEPSPEED / CASE / "checkpoint").files
    swapped = {name for name in found if name.endswith(".swp")}
    root = DEEPSPEED / CASE / "checkpoint" / "global_step2"
    assert swapped == {path.relative_to(root).as_posix() for path in root.rglob("*.swp")}
    assert len(swapped) == 12


def test_other_ranks_get_ordinary_files(tmp_path: Path) -> None:
    source = read(DEEPSPEED / CASE / "checkpoint")
    target = lay_out(source, tmp_path / "out", world_size=3)
    assert any('"device": "cpu"' in note for note in target.notes)
    assert contents(read(write(source, target))) == contents(source)
    assert not [*(tmp_path / "out").rglob("*.swp")]


def test_a_lost_swap_file_is_named_and_refused(tmp_path: Path) -> None:
    tag = copied(CASE, tmp_path)
    lost = tag / "offloaded_tensors" / "rank01" / "exp_avg-0_3.tensor.swp"
    lost.unlink()
    problem = problems_of(tag)[0]
    assert str(lost) in problem
    assert "copy it from nvme_path/zero_stage_3/optimizer/rankN" in problem
    assert set(refusals(tag, tmp_path / "out")) == {"reshard", "convert"}
    (lost.parent / "0_3.tensor.swp").unlink()
    assert set(refusals(tag, tmp_path / "out")) == {"consolidate", "reshard", "convert"}


def test_a_short_swap_file_is_refused(tmp_path: Path) -> None:
    tag = copied(CASE, tmp_path)
    path = tag / "offloaded_tensors" / "rank00" / "0_3.tensor.swp"
    path.write_bytes(path.read_bytes()[:359])
    problem = problems_of(tag)[0]
    assert "359 bytes, but its partition needs 360" in problem
    assert "consolidate" in refusals(tag, tmp_path / "out")


def test_without_any_of_them_the_run_is_refused(tmp_path: Path) -> None:
    tag = copied(CASE, tmp_path)
    shutil.rmtree(tag / "offloaded_tensors")
    with pytest.raises(Unsupported, match=r"optim_states\.pt.*NVMe.*offloaded_tensors.*0\.18\.0"):
        read(tag)


@pytest.mark.parametrize("name", ["", "../rank01/0_3", "/etc/passwd"])
def test_files_are_not_guessed_where_no_name_is_saved(name: str, tmp_path: Path) -> None:
    tag = copied(CASE, tmp_path)
    rename_in(tag, {"0_3": name})
    with pytest.raises(Unsupported, match=r"sub-group 0 were swapped to NVMe.*torch before 1\.12"):
        read(tag)


def test_masters_of_16_bits_are_refused(tmp_path: Path) -> None:
    tag = copied(CASE, tmp_path)
    precision = {"enabled": True, "bf16_master_weights_and_grads": True}
    for path in tag.glob("*optim_states.pt"):
        rewrite(path, lambda tree: tree["ds_config"].update(bf16=precision))
    with pytest.raises(Unsupported, match="16-bit masters"):
        read(tag)


def test_names_of_other_numbers_are_followed(tmp_path: Path) -> None:
    """Numbers say nothing of the order, and a directory of swap files has those of other runs."""
    tag = copied(CASE, tmp_path)
    names = {"0_3": "70_71", "exp_avg-0_3": "exp_avg-70_71", "5_6": "2_2"}
    rename_in(tag, names)
    for path in [*tag.rglob("*.swp")]:
        own = path.name.removesuffix(".tensor.swp")
        if own in names:
            path.rename(path.with_name(f"{names[own]}.tensor.swp"))
    (tag / "offloaded_tensors" / "rank00" / "0_0.tensor.swp").write_bytes(bytes(1024))
    assert contents(read(tag)) == contents(read(DEEPSPEED / CASE / "checkpoint"))


def test_before_0_18_the_files_of_one_rank_have_no_directory(tmp_path: Path) -> None:
    tag = copied(CASE, tmp_path)
    optim = parse_optim_states(TorchFile.open(tag, FIRST))
    groups = [{f"all of {number}": (numel,)} for number, numel in enumerate(NUMELS)]
    for path in [*(tag / "offloaded_tensors" / "rank00").iterdir()]:
        path.rename(path.parents[1] / path.name)
    for rank in ("rank00", "rank01"):
        shutil.rmtree(tag / "offloaded_tensors" / rank)
    problems: list[Problem] = []
    (found,) = with_swap_files(tag, [optim], groups, problems)
    assert found is not None
    assert not problems
    kinds = ("", "exp_avg-", "exp_avg_sq-")
    names = [
        f"offloaded_tensors/{kind}{own}.tensor.swp" for own in ("0_3", "5_6") for kind in kinds
    ]
    assert [*swap_files(found)] == names
    assert [partition.numel for partition in found.masters] == [*NUMELS]
    with_swap_files(tag, [optim, optim], groups, problems)
    assert len(problems) == 12  # of two ranks, nothing says whose they are


def test_thinning_drops_the_swap_files_of_optimizer_state(tmp_path: Path) -> None:
    tag = copied(CASE, tmp_path)
    thinned(tag.parent, Keep.MASTERS)
    left = {path.name for path in tag.rglob("*.swp")}
    assert left == {"0_3.tensor.swp", "5_6.tensor.swp"}
    before = contents(read(DEEPSPEED / CASE / "checkpoint"))
    after = contents(read(tag))
    assert after == {key: before[key] for key in after}
    assert {key.rpartition("|")[2] for key in after} == {"param", "buffer"}
