"""A table with one more line is all that detection, reading and every conversion need: what goes
through toy is what goes straight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.formats.toy.made import TABLE, example
from tests.golden_files import DEEPSPEED, JOB, TORCH
from tests.ops.chains import Held, Hop, compare, convert
from zerotools import formats
from zerotools.core.dtypes import FLOAT16
from zerotools.core.errors import BadRequest
from zerotools.io.output.output_marker import MARKER
from zerotools.ops.conversions import consolidate, reshard
from zerotools.ops.conversions.conversion import Conversion, Unchanged, perform_conversion
from zerotools.ops.conversions.convert import prepare_convert
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.inspection.completeness import Completeness, check_completeness
from zerotools.ops.inspection.inspect import inspect, to_json

SOURCES = {
    "zero-2": DEEPSPEED / "z2-bf16-w2/checkpoint",
    "zero-2, fp16": DEEPSPEED / "z2-fp16-w2/checkpoint",
    "zero-3, fp16": DEEPSPEED / "z3-fp16-w2/checkpoint",
    "zero-3, an adapter": DEEPSPEED / "z3-bf16-w3-adapter/checkpoint",
    "universal": DEEPSPEED / "universal-z2-bf16-w3/checkpoint",
    "dcp": TORCH / "fsdp2-torchtitan-w2/checkpoint",
    "dcp of a job": JOB,
    "safetensors": TORCH / "fsdp2-hf-sharded-w2/checkpoint",
    "torch": TORCH / "training-file/checkpoint",
    "the client's objects": DEEPSPEED / "z1-bf16-w2-client-state/checkpoint",
}
ADAM = {"lr": 0.5, "betas": (0.8, 0.9), "eps": 1e-7, "weight_decay": 0.0}
"""Where the source has no optimizer, the target begins one."""
TO_DEEPSPEED: Mapping[str, Mapping[str, Any]] = {
    "zero-2": {"stage": 2, "world_size": 2},
    "zero-2, fp16": {"stage": 2, "world_size": 2},
    "zero-3, fp16": {"stage": 3, "world_size": 2},
    "zero-3, an adapter": {"stage": 3, "world_size": 3},
}


def through_toy(name: str, scratch: Path, world_size: int = 3) -> tuple[Path, Held, set[str]]:
    """A golden checkpoint as toy: where it is, what it holds, what was dropped."""
    hop = Hop("toy", {"world_size": world_size})
    held, dropped = convert(SOURCES[name], scratch / "toy", hop, TABLE, verify=True)
    return scratch / "toy", held, dropped


def assert_same(found: Held, wanted: Held) -> None:
    """Byte for byte, and in all of the run but a loss scaler that does nothing."""
    compare(found, wanted)
    compare(wanted, found)
    runs = [replace(run, loss_scaler=run.loss_scale) for run in (found.training, wanted.training)]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("name", sorted({*SOURCES} - {"the client's objects"}))
def test_toy_holds_all_of_a_checkpoint(name: str, tmp_path: Path) -> None:
    before = Held.of(SOURCES[name])
    _, found, dropped = through_toy(name, tmp_path)
    assert found.training == before.training
    assert dropped == ({"random state"} if before.random_state else set())
    compare(found, before)


def test_what_toy_cannot_hold_is_said(tmp_path: Path) -> None:
    before = Held.of(SOURCES["the client's objects"])
    _, found, dropped = through_toy("the client's objects", tmp_path)
    assert dropped == {"client"}
    assert found.training.client.keys() < before.training.client.keys()
    assert found.training.client.items() <= before.training.client.items()


@pytest.mark.parametrize("name", TO_DEEPSPEED)
def test_to_toy_and_back_to_deepspeed(name: str, tmp_path: Path) -> None:
    toy, _, _ = through_toy(name, tmp_path)
    found, dropped = convert(toy, tmp_path / "back", Hop("deepspeed", TO_DEEPSPEED[name]), TABLE)
    assert dropped == set()
    assert_same(found, Held.of(SOURCES[name]))


@pytest.mark.parametrize("name", ["zero-2", "zero-3, fp16", "dcp", "safetensors", "torch"])
@pytest.mark.parametrize("to", ["torch", "universal", "dcp"])
def test_through_toy_is_as_straight(name: str, to: str, tmp_path: Path) -> None:
    """Also where the target drops something, or asks for what it lacks."""
    options: dict[str, Any] = {"world_size": 2} if to == "dcp" else {}
    options |= ADAM if (name, to) == ("safetensors", "universal") else {}
    if (name, to) == ("dcp", "dcp"):
        options["style"] = "torchtitan"  # written anew, not resharded with all that a DCP can have
    toy, _, _ = through_toy(name, tmp_path)
    if name == "torch" and to != "torch":  # its state is of parameters that it does not have
        for path in (SOURCES[name], toy):
            with pytest.raises(BadRequest, match=r"optimizer\.state\.0"):
                convert(path, tmp_path / "out", Hop(to, options), TABLE)
        return
    found, said = convert(toy, tmp_path / "found", Hop(to, options), TABLE)
    wanted, straight = convert(SOURCES[name], tmp_path / "wanted", Hop(to, options), TABLE)
    assert said == straight
    assert_same(found, wanted)


@pytest.mark.parametrize("name", ["zero-2", "zero-3, fp16", "dcp", "dcp of a job", "safetensors"])
def test_a_model_consolidated_from_toy(name: str, tmp_path: Path) -> None:
    toy, _, _ = through_toy(name, tmp_path)
    for path, out in ((toy, "found"), (SOURCES[name], "wanted")):
        conversion = consolidate.prepare_export(
            path, tmp_path / out, consolidate.Options(), table=TABLE
        )
        perform_conversion(conversion, budget=MemoryBudget(workers=1), overwrite=False, verify=True)
    wanted = {path.name for path in (tmp_path / "wanted").iterdir()}
    assert "model.safetensors" in wanted
    for file in wanted - {MARKER}:
        found = (tmp_path / "found" / file).read_bytes()
        assert found == (tmp_path / "wanted" / file).read_bytes(), file


def test_a_model_is_exported_in_the_type_that_the_run_computed_in(tmp_path: Path) -> None:
    """Also where all weights are masters."""
    toy = example(tmp_path / "a")
    conversion = consolidate.prepare_export(toy, tmp_path / "b", consolidate.Options(), table=TABLE)
    assert {t.dtype for t in conversion.target.checkpoint.tensors.values()} == {FLOAT16}


@pytest.mark.parametrize("name", ["zero-2", "zero-3, fp16", "dcp of a job"])
def test_inspect_says_the_same_of_toy(name: str, tmp_path: Path) -> None:
    toy, _, _ = through_toy(name, tmp_path)
    said = to_json(inspect(formats.read(toy, table=TABLE), TABLE))
    wanted = to_json(inspect(formats.read(SOURCES[name])))
    same = {
        "step",
        "parameters",
        "trainable_parameters",
        "frozen_parameters",
        "shared_parameters",
        "weights_dtype",
        "masters_dtype",
        "param_groups",
        "lr_scheduler",
        "loss_scaler",
        "skipped_steps",
        "aliases",
        "problems",
    }
    assert same <= said.keys()
    assert {key: said[key] for key in same} == {key: wanted[key] for key in same}
    assert (said["format"], said["world_size"]) == ("toy", 3)
    assert check_completeness(toy, TABLE) == Completeness(True, wanted["step"])


def test_reshard(tmp_path: Path) -> None:
    toy, before, _ = through_toy("zero-3, fp16", tmp_path)
    assert isinstance(
        reshard.prepare_reshard(toy, tmp_path / "same", world_size=3, table=TABLE), Unchanged
    )
    resharded = reshard.prepare_reshard(toy, tmp_path / "two", world_size=2, table=TABLE)
    assert isinstance(resharded, Conversion)
    perform_conversion(resharded, budget=MemoryBudget(workers=1), overwrite=False, verify=True)
    assert_same(Held.of(tmp_path / "two", TABLE), before)
    straight = tmp_path / "straight"
    straight.mkdir()
    two, _, _ = through_toy("zero-3, fp16", straight, world_size=2)
    for name in ("toy.json", "rank-0.bin", "rank-1.bin"):
        assert (tmp_path / "two" / name).read_bytes() == (two / name).read_bytes()


def test_options_that_toy_does_not_take_are_refused(tmp_path: Path) -> None:
    toy = example(tmp_path / "a")
    with pytest.raises(BadRequest, match="toy checkpoint: run the command without --tag"):
        formats.read(toy, tag="a", table=TABLE)
    with pytest.raises(BadRequest, match="--to toy does not take --stage"):
        prepare_convert(SOURCES["zero-2"], tmp_path / "out", "toy", {"stage": 2}, table=TABLE)
