"""Layer files and expert files that are lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.formats.deepspeed.damaging import ALL, copied, problems_of, refusals
from tests.formats.deepspeed.reading.test_versions import rewrite
from zerotools.core.checkpoint import Checkpoint
from zerotools.formats import format_of, read
from zerotools.io.torchzip.tree_tensors import as_tensor
from zerotools.ops.conversions import consolidate
from zerotools.ops.conversions.conversion import prove_coverage

Z0, Z1 = "pipeline-z0-bf16-w2", "pipeline-z1-fp32-w4"


def doubts(checkpoint: Checkpoint) -> Mapping[str, str]:
    return format_of(checkpoint).doubts(checkpoint)


@pytest.mark.parametrize("layer", range(4))
def test_a_layer_that_is_lost_without_zero(layer: int, tmp_path: Path) -> None:
    tag = copied(Z0, tmp_path)
    (tag / f"layer_{layer:02d}-model_states.pt").unlink()
    said = " ".join(problems_of(tag))
    assert f"layer_{layer:02d}" in said or "tied_modules.embed.weight" in said
    assert refusals(tag, tmp_path / "out").keys() == ALL


@pytest.mark.parametrize("layer", [0, 1, 2, 3])
def test_a_layer_that_is_lost_with_zero(layer: int, tmp_path: Path) -> None:
    """The masters are there; its buffers and frozen weights would not be."""
    tag = copied(Z1, tmp_path)
    (tag / f"layer_{layer:02d}-model_states.pt").unlink()
    missing = f"layer_{layer:02d}-model_states.pt is missing" if layer else "no layer file holds"
    assert any(missing in said for said in problems_of(tag))
    assert refusals(tag, tmp_path / "out", 8).keys() == ALL


def test_a_stage_that_uses_the_tied_layer_of_another(tmp_path: Path) -> None:
    """It has no layer file of its own, and its masters are those of the other."""
    tag = copied(Z0, tmp_path)
    whole = read(tag)
    (tag / "layer_04-model_states.pt").unlink()
    found = read(tag)
    assert found.problems == []
    assert found.tensors.keys() == whole.tensors.keys()
    assert ["tied_modules.embed.weight" in said for said in doubts(found).values()] == [True]
    assert (
        prove_coverage(consolidate.prepare_export(tag, tmp_path / "out", consolidate.Options()))
        == 5
    )


def test_a_tied_weight_whose_shape_is_not_known(tmp_path: Path) -> None:
    """Two layers have as many elements: the weights are read, and the optimizer's state is not."""
    tag = copied(Z0, tmp_path)

    def turned(tree: dict[str, Any]) -> None:
        tensor = as_tensor(tree["weight"])
        assert tensor is not None
        tree["weight"] = replace(tensor, shape=tensor.shape[::-1], strides=(1, 8))

    rewrite(tag / "layer_04-model_states.pt", turned)
    found = read(tag)
    assert {key.role for key in found.tensors} == {"param"}
    assert "the state of the optimizer is not read" in found.problems[0].message


@pytest.mark.parametrize("lost", [[], [1], [2], [3], [1, 3]])
def test_layers_whose_names_are_nowhere(lost: list[int], tmp_path: Path) -> None:
    """fp16 without ZeRO: flat masters in the model file, and no shards."""
    tag = copied(Z0, tmp_path)
    for path, numel in (
        (tag / "mp_rank_00_model_states.pt", 222),
        (tag / "mp_rank_01_model_states.pt", 105),
    ):

        def flat(tree: dict[str, Any], numel: int = numel) -> None:
            (masters,) = tree["optimizer"]["single_partition_of_fp32_groups"]
            stored = as_tensor(masters)
            assert stored is not None
            tree["optimizer"] = {"fp32_groups_flat": [replace(stored, shape=(numel,))]}

        rewrite(path, flat)
    for path in tag.glob("*optim_states.pt"):
        path.unlink()
    for layer in lost:
        (tag / f"layer_{layer:02d}-model_states.pt").unlink()
    said = [text for text in problems_of(tag) if "the optimizer has trained 327 elements" in text]
    assert bool(said) == bool(lost)
    assert ("consolidate" in refusals(tag, tmp_path / "out")) == bool(lost)


@pytest.mark.parametrize("expert", [0, 3])
def test_an_expert_that_is_lost(expert: int, tmp_path: Path) -> None:
    tag = copied("experts-z2-bf16-w2", tmp_path)
    (tag / f"layer_0_expert_{expert}_mp_rank_00_model_states.pt").unlink()
    assert any("is missing, but the layer has 4 experts" in said for said in problems_of(tag))
    assert refusals(tag, tmp_path / "out").keys() == ALL


def test_a_layer_and_the_shards_of_a_stage_that_are_lost(tmp_path: Path) -> None:
    """Without ZeRO BF16_Optimizer's state is in the model file too, and names the layers."""
    tag = copied(Z0, tmp_path)
    (tag / "bf16_zero_pp_rank_0_mp_rank_01_optim_states.pt").unlink()
    assert "consolidate" not in refusals(tag, tmp_path / "out")
    (tag / "layer_03-model_states.pt").unlink()
    assert "consolidate" in refusals(tag, tmp_path / "out")
