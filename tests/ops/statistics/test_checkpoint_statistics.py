"""The statistics of real checkpoints of every format, damaged ones, and quantised ones."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.golden_files import DEEPSPEED, GOLDEN, JOB, TORCH
from zerotools import formats
from zerotools.core.checkpoint import Key
from zerotools.io.numeric.value_statistics import StatisticsSum, ValueStatistics
from zerotools.ops.execution.load_arrays import load_tensors
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.inspection.inspect import inspect
from zerotools.ops.statistics.checkpoint_statistics import (
    CheckpointStatistics,
    outliers_of,
    statistics_of,
)

SMALL = MemoryBudget(1 << 20, 2)
CASES = [
    JOB,
    DEEPSPEED / "z0-fp16-w1" / "checkpoint",
    DEEPSPEED / "z1-fp32-w3" / "checkpoint",
    DEEPSPEED / "z2-bf16-w3" / "checkpoint",
    DEEPSPEED / "z3-bf16-w2" / "checkpoint",
    DEEPSPEED / "universal-z3-bf16-w2" / "checkpoint",
    *(sorted(each.glob("*/checkpoint"))[0] for each in (TORCH, GOLDEN / "megatron-core-0.16.1")),
]
QUANTISED = GOLDEN / "compressed-tensors-0.20.0" / "float-block" / "model"


def of(path: Path) -> CheckpointStatistics:
    checkpoint = formats.read_any(path)
    return statistics_of(checkpoint, inspect(checkpoint).quantisation, SMALL)


@pytest.mark.parametrize(
    "path", CASES, ids=lambda path: f"{path.parent.parent.name}-{path.parent.name}"
)
def test_they_are_those_of_the_loaded_tensors(path: Path) -> None:
    checkpoint = formats.read_any(path)
    found = of(path)
    assert found.unread == {}
    assert list(found.tensors) == list(checkpoint.tensors)
    types = {key: tensor.dtype for key, tensor in checkpoint.tensors.items()}
    for key, array in load_tensors(checkpoint, types, SMALL).items():
        wide = np.asarray(array, np.float64)
        each = found.tensors[key]
        assert each.elements == wide.size
        if wide.size:
            assert (each.least, each.greatest) == (wide.min(), wide.max())
            assert each.norm == pytest.approx(np.linalg.norm(wide.ravel()), rel=1e-12)
            assert each.mean == pytest.approx(wide.mean(), rel=1e-9, abs=1e-12)


def test_quantised_weights_are_said_to_be_codes() -> None:
    found = of(QUANTISED)
    payloads = [key for key, words in found.stored_as.items() if words.startswith("codes of fp8")]
    assert payloads
    assert all(found.tensors[key].elements for key in payloads)
    shown = found.to_json()[payloads[0]]
    assert shown["stored_as"] == found.stored_as[payloads[0]]
    assert not found.stored_as.keys() & found.outliers.keys()


def test_a_tensor_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(JOB, path)
    whole = of(path)
    lost = path / "dcp" / "__1_0.distcp"
    lost.write_bytes(lost.read_bytes()[:20_000])
    found = of(path)
    assert found.unread
    assert all("__1_0.distcp" in why for why in found.unread.values())
    assert found.tensors
    assert {key: whole.tensors[key] for key in found.tensors} == dict(found.tensors)
    assert found.tensors.keys() | found.unread.keys() == whole.tensors.keys()


def test_a_file_that_ends_after_its_metadata_was_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    shutil.copy(QUANTISED / path.name, path)
    checkpoint = formats.read_any(path)
    quantisation = inspect(checkpoint).quantisation
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    checkpoint = replace(checkpoint, stamps={})
    found = statistics_of(checkpoint, quantisation, SMALL)
    assert found.unread
    assert all(path.name in why for why in found.unread.values())
    assert found.tensors.keys() | found.unread.keys() == checkpoint.tensors.keys()


def test_the_bytes_that_were_read_add_up() -> None:
    checkpoint = formats.read_any(JOB)
    counts = list[int]()
    statistics_of(checkpoint, inspect(checkpoint).quantisation, SMALL, counts.append)
    assert sum(counts) == sum(tensor.nbytes for tensor in checkpoint.tensors.values())


def layer_of(*values: float) -> ValueStatistics:
    total = StatisticsSum()
    total.add(np.array(values, np.float32))
    return total.finished()


def layers(*each: ValueStatistics, role: str = "param") -> dict[Key, ValueStatistics]:
    return {Key(f"h.{n}.w", role): found for n, found in enumerate(each)}


def test_a_layer_far_from_the_median_is_an_outlier() -> None:
    found = outliers_of(layers(layer_of(1), layer_of(1.1), layer_of(9), layer_of(0.9), layer_of(1)))
    assert found == {
        Key("h.2.w", "param"): "root mean square 9, which is 9 times the median of 5 layers"
    }


def test_layers_that_differ_much_from_each_other_have_none() -> None:
    assert (
        outliers_of(layers(layer_of(1), layer_of(2), layer_of(4), layer_of(8), layer_of(16))) == {}
    )


def test_few_layers_have_no_median() -> None:
    assert outliers_of(layers(layer_of(1), layer_of(1), layer_of(100))) == {}


def test_a_layer_of_zeros_and_values_that_are_not_finite() -> None:
    nan = layer_of(1, float("nan"), float("inf"))
    found = outliers_of(layers(layer_of(1), layer_of(0), layer_of(1), layer_of(1), nan))
    assert found == {
        Key("h.1.w", "param"): "all values are 0, and the median of 5 layers is 1",
        Key("h.4.w", "param"): "1 NaN and 1 infinite values",
    }


def test_outliers_are_in_the_order_of_their_layers() -> None:
    nan = layer_of(float("nan"))
    found = outliers_of({Key(f"h.{n}.w", "param"): nan for n in (0, 1, 10, 11, 2)})
    assert [key.name for key in found] == [f"h.{n}.w" for n in (0, 1, 2, 10, 11)]


def test_roles_and_kinds_are_apart() -> None:
    moments = layers(*(layer_of(0.001) for _ in range(5)), role="exp_avg_sq")
    assert outliers_of(layers(*(layer_of(1) for _ in range(5))) | moments) == {}


def test_modules_without_a_number_are_not_compared() -> None:
    names = ("embed", "cube", "norm", "head", "gate")
    modules = {Key(f"{name}.weight", "param"): layer_of(10.0**n) for n, name in enumerate(names)}
    assert outliers_of(modules) == {}
