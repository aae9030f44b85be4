"""Optimizer state without ZeRO, against what the live program held."""

from __future__ import annotations

import json

import pytest

from tests.golden_files import DEEPSPEED
from zerotools import formats
from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.errors import Unsupported
from zerotools.formats.deepspeed.partitioning.kept_for_writer import native_of
from zerotools.formats.deepspeed.reading.read_optimizer_without_zero import numbered_state


def read(case: str) -> Checkpoint:
    return formats.read(DEEPSPEED / case / "checkpoint")


@pytest.mark.parametrize(("case", "masters"), [("z0-fp32-w2", 0), ("z0-bf16-w2", 7)])
def test_every_parameter_has_its_state_by_number(case: str, masters: int) -> None:
    found = numbered_state(read(case))
    assert found is not None
    state, training = found
    assert [len(group.params) for group in training.groups] == [4, 3]
    assert sorted(training.unnamed.values()) == list(range(7))
    roles = [key.role for key in state.tensors]
    assert (roles.count("exp_avg"), roles.count("param")) == (7, masters)
    assert {training.scalars[Key(name, "step")].value for name in training.unnamed} <= {2.0, 3.0}
    assert training.groups[0].options["lr"] == 0.01


def test_the_loss_scaler_of_fp16_is_there() -> None:
    found = numbered_state(read("z0-fp16-w1"))
    assert found is not None
    scaler = found[1].loss_scaler
    assert scaler is not None
    said = (
        scaler.scale,
        scaler.dynamic,
        scaler.options["cur_iter"],
        scaler.options["scale_window"],
    )
    assert json.loads((DEEPSPEED / "z0-fp16-w1" / "truth.json").read_text())["case"]
    assert said == (128.0, True, 4, 2)


def test_with_zero_there_is_none() -> None:
    assert numbered_state(read("z2-bf16-w2")) is None


def test_several_model_parallel_ranks_have_no_names() -> None:
    checkpoint = read("z0-fp16-w1")
    shards = native_of(checkpoint).mp_shards
    shards.append(shards[0])
    with pytest.raises(Unsupported, match=r"2 model-parallel ranks.*; convert only the weights"):
        numbered_state(checkpoint)
