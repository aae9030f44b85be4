"""Older checkpoints, made from a golden one by undoing what later versions of DeepSpeed changed."""

from __future__ import annotations

import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.formats.deepspeed.reading.test_golden import ROOT, truth
from tests.layouts import load
from zerotools.core.checkpoint import Checkpoint, Key, Opaque
from zerotools.core.errors import BadFile, Unsupported
from zerotools.formats import read
from zerotools.io.torchzip.pickle_writer import dumps
from zerotools.io.torchzip.pt_file import TorchFile
from zerotools.ops.inspection.inspect import inspect

MODEL = "mp_rank_00_model_states.pt"
Change = Callable[[dict[str, Any]], None]


def rewrite(path: Path, change: Change) -> None:
    """Save a `.pt` again with another pickle and the same storages."""
    tree = TorchFile.open(path.parent, path.name).tree
    change(tree)
    with zipfile.ZipFile(path) as old:
        records = {info.filename: old.read(info) for info in old.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as new:
        for name, data in records.items():
            new.writestr(name, dumps(tree) if name.endswith("/data.pkl") else data)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """The tag directory of a copy of a stage-2 run with a frozen and a tied weight, and buffers."""
    shutil.copytree(ROOT / "z2-bf16-w2" / "checkpoint", tmp_path / "checkpoint")
    return tmp_path / "checkpoint" / "global_step2"


def in_model(directory: Path, change: Change) -> None:
    rewrite(directory / MODEL, change)


def in_shards(directory: Path, change: Change) -> None:
    for path in directory.glob("*optim_states.pt"):
        rewrite(path, change)


def check(directory: Path) -> Checkpoint:
    """Every tensor is still found, and still what the engine had."""
    checkpoint = read(directory)
    for key, values in truth(ROOT / "z2-bf16-w2"):
        assert load(checkpoint, key).tobytes() == values.tobytes(), key
    return checkpoint


def test_file_names_without_the_underscore(directory: Path) -> None:
    for path in directory.glob("*optim_states.pt"):
        path.rename(path.with_name(path.name.replace("_optim_states", "optim_states")))
    check(directory)


def test_plain_numbers_for_stage_and_partition_count(directory: Path) -> None:
    def change(tree: dict[str, Any]) -> None:
        inner = tree["optimizer_state_dict"]
        assert isinstance(inner["zero_stage"], Opaque)
        inner["zero_stage"], inner["partition_count"] = 2, 2
        del inner["group_paddings"], inner["param_slice_mappings"]

    in_shards(directory, change)
    assert check(directory).origin.stage == 2


def test_shapes_in_the_optimizer_file(directory: Path) -> None:
    shapes: list[Any] = []
    in_model(directory, lambda tree: shapes.append(tree.pop("param_shapes")))
    in_shards(directory, lambda tree: tree.update(param_shapes=shapes[0]))
    check(directory)


def test_no_shapes_at_all(directory: Path) -> None:
    in_model(directory, lambda tree: tree.pop("param_shapes"))
    check(directory)  # the optimizer files name the parameters of their partitions
    in_shards(directory, lambda tree: tree["optimizer_state_dict"].pop("param_slice_mappings"))
    with pytest.raises(Unsupported, match="has no param_shapes"):
        read(directory)


def test_one_list_of_shapes_for_several_groups(directory: Path) -> None:
    def change(tree: dict[str, Any]) -> None:
        tree["param_shapes"] = {n: s for group in tree["param_shapes"] for n, s in group.items()}

    in_model(directory, change)
    with pytest.raises(Unsupported, match="one list of shapes for all of them"):
        read(directory)


def test_tied_and_frozen_weights_that_are_not_recorded(directory: Path) -> None:
    def change(tree: dict[str, Any]) -> None:
        for key in ("shared_params", "frozen_param_shapes", "frozen_param_fragments"):
            del tree[key]

    before = dict(read(directory).aliases)
    in_model(directory, change)
    assert before
    assert dict(check(directory).aliases) == before


def test_a_missing_rank_is_a_problem_and_a_hole(directory: Path) -> None:
    lost = next(directory.glob("*pp_rank_1_*optim_states.pt"))
    lost.unlink()
    (problem,) = read(directory).problems
    assert problem.file == lost.name
    assert "is missing; the run had 2 ranks" in problem.message


@pytest.mark.parametrize(
    "damage",
    [
        lambda inner: inner.pop("base_optimizer_state"),
        lambda inner: inner.update(single_partition_of_fp32_groups=7),
        lambda inner: inner.update(single_partition_of_fp32_groups=[1, 2]),
        lambda inner: inner.pop("single_partition_of_fp32_groups"),
        lambda inner: inner["single_partition_of_fp32_groups"].pop(),
        lambda inner: inner["base_optimizer_state"].update(state={9: {}}),
        lambda inner: inner["base_optimizer_state"].update(state={0: 5}),
    ],
)
def test_a_damaged_shard_is_named(directory: Path, damage: Change) -> None:
    in_shards(directory, lambda tree: damage(tree["optimizer_state_dict"]))
    with pytest.raises(BadFile, match=r"optim_states\.pt"):
        read(directory)


@pytest.mark.parametrize("key", ["module", "param_shapes", "shared_params", "buffer_names"])
def test_a_damaged_model_file_is_named(directory: Path, key: str) -> None:
    in_model(directory, lambda tree: tree.update({key: 7}))
    with pytest.raises(BadFile, match=r"model_states\.pt"):
        read(directory)


def test_shapes_that_the_vectors_cannot_hold(directory: Path) -> None:
    def change(tree: dict[str, Any]) -> None:
        first = tree["param_shapes"][0]
        first[next(iter(first))] = (1000, 1000)

    in_model(directory, change)
    with pytest.raises(BadFile, match=r"so each of \d+ ranks should have \d+, but the ranks have"):
        read(directory)


def test_placeholders_of_nebula_are_refused_by_name(directory: Path) -> None:
    path = directory / MODEL
    with zipfile.ZipFile(path) as old:
        records = {info.filename: old.read(info) for info in old.infolist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as new:
        for name, data in records.items():
            new.writestr(name, dumps("") if name.endswith("/data.pkl") else data)
    with pytest.raises(Unsupported, match=r"mp_rank_00_model_states\.pt is a placeholder .*Nebula"):
        read(directory)


def test_a_parameter_without_elements_moves_nothing(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "z3-fp32-w2" / "checkpoint", tmp_path / "checkpoint")

    def change(tree: dict[str, Any]) -> None:
        first, *rest = tree["param_shapes"][0].items()
        tree["param_shapes"][0] = dict([first, ("gone.weight", (0, 4)), *rest])

    for path in (tmp_path / "checkpoint").glob("*/*model_states.pt"):
        rewrite(path, change)
    checkpoint = read(tmp_path / "checkpoint")
    assert load(checkpoint, Key("gone.weight", "param")).shape == (0, 4)
    assert [problem.message for problem in inspect(checkpoint).problems] == []
    for key, values in truth(ROOT / "z3-fp32-w2"):
        assert load(checkpoint, key).tobytes() == values.tobytes(), key
