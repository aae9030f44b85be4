"""Buckets are read only where the order of their parameters is proved."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.formats.megatron.golden import read_case, run_of
from zerotools.core.checkpoint import Key, Tensor
from zerotools.core.training_state import Scalar
from zerotools.formats import training_of
from zerotools.formats.megatron.flat_buckets import proved_state
from zerotools.formats.megatron.training_state import native_of
from zerotools.io.distcp.check_data_files import data_files
from zerotools.io.distcp.dcp_directory import load_metadata, tensor_of
from zerotools.io.distcp.item_chunks import Items

CASES = ("dense-tp2-dp2-buckets", "buckets-tied-tp2-pp2")
Parts = tuple[dict[Key, Tensor], dict[Key, Tensor]]


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> str:
    return f"megatron-core-0.16.1/{request.param}"


def _parts(case: str) -> Parts:
    """The buckets as they are stored, and the weights as they are read."""
    path: Path = run_of(case) / "iter_0000010"
    metadata = load_metadata(path)
    files = data_files(path, metadata).sizes
    items = Items(path, metadata)
    stored = {
        Key(flat, "state"): tensor_of(items, path, flat, saved, files)
        for flat, saved in metadata.tensors.items()
        if flat.startswith("optimizer.")
    }
    weights = {
        Key(key.name, "param"): tensor
        for key, tensor in read_case(case).tensors.items()
        if key.role == "param16"
    }
    return stored, weights


def test_groups_and_steps_come_from_beside_the_buckets(case: str) -> None:
    checkpoint = read_case(case)
    training = training_of(checkpoint)
    trained = {key.name for key in checkpoint.tensors if key.role == "exp_avg"}
    assert {name for group in training.groups for name in group.params} == trained
    assert set(training.scalars.values()) == {Scalar(2.0)}


def test_what_is_proved_and_what_is_not(case: str) -> None:
    stored, weights = _parts(case)
    facts = native_of(read_case(case)).facts
    assert len(proved_state(stored, weights, facts)) == 3 * len(weights)
    for changed in (
        {"tensor_model_parallel_size": 4},
        {"tensor_model_parallel_size": None},
        {"pipeline_model_parallel_size": 4},
        {"num_layers": 4},
        {"num_experts": 4},
        {"virtual_pipeline_model_parallel_size": 2},
        {"swiglu": None},
    ):
        other = replace(facts, args={**facts.args, **changed})
        assert not proved_state(stored, weights, other), changed
    bucket = next(key for key in stored if key.name.endswith("exp_avg"))
    assert not proved_state({k: t for k, t in stored.items() if k != bucket}, weights, facts)
    tensor = stored[bucket]
    for length in (tensor.numel - 64, tensor.numel + 64):
        other_length = replace(tensor, shape=(length,))
        assert not proved_state({**stored, bucket: other_length}, weights, facts)
    name = Key("decoder.layers.0.mlp.linear_fc2.weight", "param")
    assert not proved_state(stored, {k: t for k, t in weights.items() if k != name}, facts)
    strange = Key("decoder.layers.0.mlp.linear_fc3.weight", "param")
    assert not proved_state(stored, {**weights, strange: weights[name]}, facts)
    wider = replace(weights[name], shape=(16, 25))
    assert not proved_state(stored, {**weights, name: wider}, facts)
