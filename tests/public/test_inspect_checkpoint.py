"""inspect from Python: the fields of `zerotools inspect --json`, typed."""

from __future__ import annotations

import pickle
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import zerotools
from tests.golden_files import DEEPSPEED
from tests.ops.verification.damage import copy
from tests.surface.test_inspect_json import CHECKPOINTS
from zerotools.public.inspect_checkpoint import InspectResult

OF_JSON_ALONE, OF_PYTHON_ALONE = {"schema"}, {"inspection", "statistics"}
ZERO3 = DEEPSPEED / "z3-bf16-w2" / "checkpoint"


@pytest.mark.parametrize("path", CHECKPOINTS, ids=lambda path: path.parent.name)
def test_the_fields_are_the_keys_of_the_json(path: Path) -> None:
    found = zerotools.inspect(path)
    told = found.to_json()
    names = {each.name for each in fields(InspectResult)}
    assert names - OF_PYTHON_ALONE == told.keys() - OF_JSON_ALONE
    plain = (str, int, type(None))
    for name, value in told.items():
        own = getattr(found, name, None)
        if name not in OF_JSON_ALONE and isinstance(value, plain) and name != "path":
            assert own == value, name
        elif isinstance(value, list):
            assert len(own or ()) == len(value), name
    assert str(found.path) == told["path"]


@pytest.mark.parametrize("path", CHECKPOINTS, ids=lambda path: path.parent.name)
def test_a_result_comes_back_from_another_process(path: Path) -> None:
    found = zerotools.inspect(path)
    again = pickle.loads(pickle.dumps(found))
    assert again.to_json(chunks=True) == found.to_json(chunks=True)


def test_the_parts_are_typed() -> None:
    found = zerotools.inspect(ZERO3)
    assert found.optimizer is not None
    assert found.optimizer.states == ("exp_avg", "exp_avg_sq", "step")
    assert found.param_groups is not None
    assert found.param_groups[0].hyperparameters["lr"] > 0
    by_name = {(each.name, each.role): each for each in found.tensors}
    weight = by_name["layer.weight", "param"]
    assert (weight.shape, str(weight.dtype)) == ((13, 7), "float32")
    assert {chunk.file for chunk in weight.chunks} <= set(found.files)
    assert "Chunk(" not in repr(found)


@pytest.mark.parametrize("option", [{"workers": 2}, {"max_memory": "256MiB"}])
def test_options_of_statistics_need_stats(option: dict[str, Any]) -> None:
    flag = "--" + next(iter(option)).replace("_", "-")
    with pytest.raises(zerotools.BadRequest, match=f"^{flag} needs --stats; give both, or leave"):
        zerotools.inspect(ZERO3, **option)
    assert zerotools.inspect(ZERO3, stats=True, **option).statistics is not None


def test_what_is_damaged_is_described(tmp_path: Path) -> None:
    path = copy(ZERO3, tmp_path)
    assert zerotools.inspect(path).is_whole
    next(path.rglob("*rank_1_*optim_states.pt")).unlink()
    found = zerotools.inspect(path)
    assert not found.is_whole
    assert "is missing" in found.problems[0].message
    with pytest.raises(zerotools.BadRequest, match="does not exist"):
        zerotools.inspect(tmp_path / "nothing")
