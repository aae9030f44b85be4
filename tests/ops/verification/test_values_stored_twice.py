from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.golden_files import DEEPSPEED
from tests.layouts import Placement, store
from zerotools import formats
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.dtypes import BFLOAT16, FLOAT32
from zerotools.io.numeric.compare_values import ValueCounts
from zerotools.io.numeric.dtype_casts import numpy_dtype
from zerotools.ops.verification.values_stored_twice import counts_of, differing_weights
from zerotools.ops.verification.verification_result import Check
from zerotools.ops.verification.verify import carry_out_verify, prepare_verify

from .damage import SMALL, copy, messages, verified

WITH_BOTH = [
    "bf16-optimizer-w2",
    "experts-z1-fp32-w4-round-robin",
    "experts-z2-bf16-w2",
    "pipeline-z1-fp32-w4",
    "tensor-parallel-z1-bf16-w4",
    "universal-z2-bf16-w3",
    "z1-fp32-w3-round-robin",
    "z2-bf16-w3-aligned-round-robin",
    "z2-fp16-w2",
]
NUMEL = 2**20 + 500


def pairs_of(checkpoint: Checkpoint) -> list[tuple[str, object, object]]:
    return list(formats.format_of(checkpoint).weight_pairs(checkpoint))


@pytest.mark.parametrize("case", WITH_BOTH)
def test_weights_of_real_runs_are_the_casts_of_their_masters(case: str) -> None:
    checkpoint = formats.read(DEEPSPEED / case / "checkpoint")
    pairs = list(formats.format_of(checkpoint).weight_pairs(checkpoint))
    assert len(pairs) > 3
    assert list(differing_weights(checkpoint, pairs, SMALL)) == []


def test_stage_3_has_no_weights_to_compare_with() -> None:
    assert pairs_of(formats.read(DEEPSPEED / "z3-bf16-w2" / "checkpoint")) == []


@pytest.mark.parametrize(
    ("case", "file", "name"),
    [
        ("pipeline-z1-fp32-w4", "layer_02-model_states.pt", "2.weight"),
        ("pipeline-z1-fp32-w4", "layer_00-model_states.pt", "tied_modules.embed.weight"),
        ("pipeline-z1-fp32-w4", "layer_04-model_states.pt", "tied_modules.embed.weight"),
        ("experts-z1-fp32-w4-round-robin", "layer_1_expert_3_mp_rank_00_model_states.pt", "3."),
    ],
)
def test_a_layer_or_expert_of_another_step_is_found(
    tmp_path: Path, case: str, file: str, name: str
) -> None:
    path = copy(DEEPSPEED / case / "checkpoint", tmp_path)
    assert verified(path).is_whole
    change_saved(next(path.rglob(file)))
    (finding,) = verified(path).findings
    assert finding.check is Check.MEANING
    assert file in finding.message
    assert name in finding.message
    assert "is not equal to its master" in finding.message


def change_saved(file: Path) -> None:
    """Change one value of the first storage, as another save would: the CRC-32 follows."""
    with zipfile.ZipFile(file) as old:
        records = {info.filename: bytearray(old.read(info)) for info in old.infolist()}
    first = next(data for name, data in records.items() if "/data/" in name)
    first[2] ^= 1
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as new:
        for name, data in records.items():
            new.writestr(name, bytes(data))


@pytest.mark.torch
def test_a_weight_of_another_step_is_found(tmp_path: Path) -> None:
    """Beyond the beginning of its master, with every checksum as it should be."""
    import torch

    path = copy(DEEPSPEED / "z2-bf16-w2" / "checkpoint", tmp_path)
    file = next(path.rglob("mp_rank_00_model_states.pt"))
    tree = torch.load(file, weights_only=False)
    tree["module"]["embed.weight"].view(-1)[-1] += 1
    torch.save(tree, file)
    found = [
        f
        for f in carry_out_verify(prepare_verify(path), budget=SMALL).findings
        if f.check is Check.MEANING
    ]
    (finding,) = found
    weight = tree["module"]["embed.weight"]
    assert "embed.weight is not equal to its master" in finding.message
    assert f"1 of {weight.numel()} elements differ, the first at {weight.numel() - 1}" in (
        finding.message
    )


@pytest.mark.torch
def test_ranks_at_another_step_are_found(tmp_path: Path) -> None:
    """A step of one group alone, which the first group does not show."""
    import torch

    path = copy(DEEPSPEED / "z1-bf16-w4" / "checkpoint", tmp_path)
    file = next(path.rglob("bf16_zero_pp_rank_2_*"))
    tree = torch.load(file, weights_only=False)
    states = tree["optimizer_state_dict"]["base_optimizer_state"]["state"]
    assert len(states) > 1
    states[1]["step"] += 1
    torch.save(tree, file)
    assert "group 1 (step)" in messages(carry_out_verify(prepare_verify(path), budget=SMALL))


def test_files_of_two_tags_do_not_fit(tmp_path: Path) -> None:
    tags = copy(DEEPSPEED / "z2-bf16-w2-tags" / "checkpoint", tmp_path)
    name = "mp_rank_00_model_states.pt"
    shutil.copy(tags / "global_step1" / name, tags / "global_step3" / name)
    found = messages(carry_out_verify(prepare_verify(tags / "global_step3"), budget=SMALL))
    assert "is not equal to its master" in found


@pytest.mark.torch
def test_the_model_file_of_a_rank_of_another_step_is_found(tmp_path: Path) -> None:
    """At stage 3 nothing is read from it but the first rank's."""
    import torch

    path = copy(DEEPSPEED / "z3-bf16-w2" / "checkpoint", tmp_path)
    file = next(path.rglob("zero_pp_rank_1_*model_states.pt"))
    tree = torch.load(file, weights_only=False)
    tree["global_steps"] -= 1
    torch.save(tree, file)
    assert "step 1" in messages(carry_out_verify(prepare_verify(path), budget=SMALL))


def pair(tmp_path: Path, changed: int | None) -> Checkpoint:
    values = np.random.default_rng(3).normal(size=NUMEL).astype(np.float32)
    values[[5, 2**20 + 3]] = np.nan
    cast = values.astype(numpy_dtype(BFLOAT16))
    cast.view(np.uint16)[5] = 0xFFC0  # another NaN
    if changed is not None:
        cast[changed] = 7
    cut = 2**20 - 7
    parts = [Placement(Box((0,), (cut,)), "a", 1, (0,))]
    parts.append(Placement(Box((cut,), (NUMEL - cut,)), "b", 3, (0,)))
    whole = [Placement(Box((0,), (NUMEL,)), "c", 0, (0,))]
    return store(
        tmp_path,
        {Key("w", "param"): (values, FLOAT32, parts), Key("w", "param16"): (cast, BFLOAT16, whole)},
    )


@pytest.mark.parametrize("at", [None, 0, 2**20, NUMEL - 1])
def test_one_element_is_found_wherever_it_is(tmp_path: Path, at: int | None) -> None:
    checkpoint = pair(tmp_path, at)
    tensors = checkpoint.tensors
    pairs = [("w", tensors["w", "param"], tensors["w", "param16"])]
    found = [
        (each.elements, each.numel, each.first)
        for each in differing_weights(checkpoint, pairs, SMALL)
    ]
    assert found == ([] if at is None else [(1, NUMEL, at)])


def test_what_is_odd_is_counted_through_boxes(tmp_path: Path) -> None:
    counts = counts_of(pair(tmp_path, None), {Key("w", "param"): False}, SMALL)
    assert counts == {Key("w", "param"): ValueCounts(nans=2)}
