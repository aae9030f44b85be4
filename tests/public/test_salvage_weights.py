"""salvage from Python."""

from __future__ import annotations

from pathlib import Path

import pytest

import zerotools
from tests.golden_files import DEEPSPEED
from tests.ops.exports import weights_of
from tests.ops.verification.damage import copy
from tests.ops.weights.test_add_base_model_weights import PREFIX, WEIGHTS, adapter, base
from tests.ops.weights.test_name_check import BODY, WHOLE, source, trial
from zerotools.core.errors import BadRequest

__all__ = ["trial"]  # of no test here is transformers asked
ZERO3 = DEEPSPEED / "z3-bf16-w2" / "checkpoint"


@pytest.fixture
def damaged(tmp_path: Path) -> Path:
    path = copy(ZERO3, tmp_path)
    next(path.rglob("*rank_1_*optim_states.pt")).unlink()
    return path


def test_what_is_whole_is_written(damaged: Path, tmp_path: Path) -> None:
    planned = zerotools.salvage(damaged, tmp_path / "out", dry_run=True)
    assert (planned.written, planned.dry_run, (tmp_path / "out").exists()) == (False, True, False)
    told: list[zerotools.ProgressUpdate] = []
    done = zerotools.salvage(damaged, tmp_path / "out", progress=told.append)
    assert (done.written, done.is_complete, done.is_whole) == (True, False, False)
    assert set(done.weights) == set(planned.weights) == set(weights_of(tmp_path / "out"))
    assert "layer.weight" in done.left_out
    assert ("layer.weight", "param") in done.holes
    assert told[0].stage == "examine"
    assert told[-1].stage == "salvage"
    assert done.to_json()["output"] == str(tmp_path / "out")


def test_what_is_lost_is_taken_from_another(damaged: Path, tmp_path: Path) -> None:
    done = zerotools.salvage(damaged, tmp_path / "out", fill_from=str(ZERO3), include="layer.*")
    assert done.is_complete
    assert {key.name for key, _ in done.filled} == {"layer.weight", "layer.bias"} & set(
        done.weights
    )


def test_names_are_compared_with_the_config(tmp_path: Path) -> None:
    path = source(tmp_path / "a", {**BODY, "v_head.weight": (1, 8)})
    with pytest.raises(BadRequest, match=r"1 tensor missing \(lm_head.*1 tensor unexpected \(v_h"):
        zerotools.salvage(path, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    done = zerotools.salvage(path, tmp_path / "as-is", no_check_names=True)
    assert "v_head.weight" in done.weights


@pytest.mark.parametrize("wrapper", ["", "module."])
def test_lost_weights_are_not_missing_ones(wrapper: str, tmp_path: Path) -> None:
    wrapped = {wrapper + name: shape for name, shape in WHOLE.items()}
    path = source(tmp_path / "run", wrapped)
    data = path.read_bytes()
    path.write_bytes(data[:-4])  # of the last of its tensors
    done = zerotools.salvage(path, tmp_path / "out")
    (lost,) = done.left_out
    assert set(done.weights) == {name for name in WHOLE if name != lost}
    assert lost in WHOLE
    few = zerotools.salvage(path, tmp_path / "few", exclude="*norm*")
    assert set(few.weights) == {name for name in done.weights if "norm" not in name}


def test_a_lora_run_is_merged_but_for_what_is_lost(tmp_path: Path) -> None:
    held = {f"{PREFIX}.{name}": WEIGHTS["layers.0.q.weight"] + 1 for name in ("k.weight",)}
    more = {f"{PREFIX}.q.base_layer.weight": WEIGHTS["layers.0.q.weight"]}
    more[f"{PREFIX}.norm.weight"] = WEIGHTS["layers.0.norm.weight"]
    whole = adapter(tmp_path / "run", **held, **more)
    done = zerotools.salvage(whole, tmp_path / "out")
    zerotools.consolidate(whole, tmp_path / "one")
    found, wanted = weights_of(tmp_path / "out"), weights_of(tmp_path / "one")
    assert {k: v.tobytes() for k, v in found.items()} == {k: v.tobytes() for k, v in wanted.items()}
    file = whole / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-8])  # of the adapter of q
    done = zerotools.salvage(whole, tmp_path / "left")
    assert done.left_out == {
        "layers.0.q.weight": "the weight or its adapter has holes, and the merged weight needs both"
    }
    assert set(weights_of(tmp_path / "left")) == {"layers.0.k.weight", "layers.0.norm.weight"}


def test_an_adapter_alone_is_merged_into_the_base_that_is_named(tmp_path: Path) -> None:
    run, given = adapter(tmp_path / "run"), base(tmp_path / "base")
    with pytest.raises(BadRequest, match="--base org/base, or export only the adapter"):
        zerotools.salvage(run, tmp_path / "out")
    done = zerotools.salvage(run, tmp_path / "out", base=given)
    assert set(done.weights) == set(WEIGHTS)
