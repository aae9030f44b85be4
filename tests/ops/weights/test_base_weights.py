"""Adapters that were saved alone are added to their base model, as it lies in its directory."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.golden_files import DEEPSPEED
from tests.ops.weights.test_lora_merge import DOWN, OTHER, SCALE, UP, WEIGHT, matrices, written
from tests.runs.records import a_record
from zerotools.core import dtypes
from zerotools.core.boxes import Box
from zerotools.core.checkpoint import Checkpoint, Key
from zerotools.core.errors import BadFile, BadRequest
from zerotools.core.hub_layout import HubBlock
from zerotools.io.stores.store_path import StorePath
from zerotools.ops.execution.load_arrays import load
from zerotools.ops.weights.base_weights import with_base
from zerotools.ops.weights.hub_names import hub_layout_of, restored
from zerotools.ops.weights.lora_merge import AdapterRequest, merge_adapters
from zerotools.runs.base_model_record import record_base
from zerotools.runs.job_record import JobRecord, LoraRecord

PLAIN = Key("layer.q.weight", "param")
ON_HUB = "transformer.layer.q.weight"
FILE = "model.safetensors"


def saved(tmp_path: Path, name: str = PLAIN.name, **changes: object) -> Checkpoint:
    """Adapters alone, and a directory with their base model, which has the weight as `name`."""
    arrays = matrices()
    directory = tmp_path / "model"
    directory.mkdir()
    base = {name: arrays[WEIGHT], OTHER.name: arrays[OTHER]}
    save_file(base, directory / FILE, metadata={"format": "pt"})
    lora = LoraRecord(2, SCALE, (), record_base(directory, [FILE], "nf4"))
    record: JobRecord = replace(a_record(lora=lora), **changes)  # type: ignore[arg-type]
    alone = {key: arrays[key] for key in (DOWN, UP)}
    return written(tmp_path / "source", alone, record)


def wanted() -> np.ndarray:
    arrays = matrices()
    total: np.ndarray = arrays[WEIGHT] + np.float32(SCALE) * (arrays[UP] @ arrays[DOWN])
    return total


def test_the_sum_is_that_of_the_weight_before_it_was_rounded(tmp_path: Path) -> None:
    merged = merge_adapters(saved(tmp_path), tmp_path / "scratch")
    assert merged is not None
    assert set(merged.checkpoint.tensors) == {PLAIN, OTHER}
    with merged.sums():
        found = load(merged.checkpoint, dict.fromkeys((PLAIN, OTHER), dtypes.FLOAT32))
    np.testing.assert_allclose(found[PLAIN], wanted(), rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(found[OTHER], matrices()[OTHER])


def test_a_weight_may_have_another_name_on_the_hub(tmp_path: Path) -> None:
    whole = HubBlock(ON_HUB, (9, 5), Box.whole((9, 5)))
    merged = merge_adapters(
        saved(tmp_path, ON_HUB, hub={PLAIN.name: (whole,)}), tmp_path / "scratch"
    )
    assert merged is not None
    layout = hub_layout_of(merged.checkpoint)
    with merged.sums():
        found = restored(merged.checkpoint, layout)
        assert {key.name for key in found.tensors} == {ON_HUB, OTHER.name}
        total = load(found, {Key(ON_HUB, "param"): dtypes.FLOAT32})[Key(ON_HUB, "param")]
    np.testing.assert_allclose(total, wanted(), rtol=1e-6, atol=1e-6)


def test_a_base_that_is_gone_or_changed_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, file = saved(tmp_path), tmp_path / "model" / FILE
    before = file.read_bytes()
    file.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    merged = merge_adapters(source, tmp_path / "scratch")
    assert merged is not None
    with pytest.raises(
        BadRequest, match=r"has SHA-256 .*; name a copy of it with zerotools consolidate"
    ):
        merged.sums()
    file.unlink()
    with pytest.raises(BadRequest, match=r"model\.safetensors cannot be read: No such file"):
        merge_adapters(source, tmp_path / "scratch")
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / FILE).write_bytes(before)
    monkeypatch.chdir(tmp_path)  # a user's path is not below the checkpoint
    merged = merge_adapters(source, tmp_path / "scratch", request=AdapterRequest(base=Path("copy")))
    assert merged is not None
    with merged.sums():
        found = load(merged.checkpoint, {PLAIN: dtypes.FLOAT32})[PLAIN]
    np.testing.assert_allclose(found, wanted(), rtol=1e-6, atol=1e-6)


def test_whole_weights_take_no_base(tmp_path: Path) -> None:
    asked = AdapterRequest(base=tmp_path)
    whole = written(tmp_path / "source", matrices(), a_record(lora=LoraRecord(2, SCALE)))
    with pytest.raises(BadRequest, match="holds whole weights; leave it out"):
        merge_adapters(whole, tmp_path / "scratch", request=asked)
    plain = {key: tensor for key, tensor in whole.tensors.items() if key == OTHER}
    with pytest.raises(BadRequest, match=r"has no adapter .* --base is for runs with an adapter"):
        merge_adapters(
            replace(whole, tensors=plain, native=None), tmp_path / "scratch", request=asked
        )
    (whole.root / "adapter_config.json").write_text(
        '{"peft_type": "LORA", "r": 2, "lora_alpha": 3}'
    )
    with pytest.raises(BadRequest, match="already holds the base model of its adapter"):
        merge_adapters(replace(whole, native=None), tmp_path / "scratch", request=asked)


def test_a_base_in_a_store_is_refused(tmp_path: Path) -> None:
    """Its weights would be looked for on the disk of the adapters."""
    far = StorePath.of("s3", ["bucket", "model"])
    with pytest.raises(BadRequest, match=r"--base s3://bucket/model: .* must be on a disk here"):
        merge_adapters(saved(tmp_path), tmp_path / "scratch", request=AdapterRequest(base=far))


def test_files_that_the_run_did_not_read_are_left_out(tmp_path: Path) -> None:
    source = saved(tmp_path)
    other = {"layer.z.weight": np.zeros((2, 2), "f4")}
    save_file(other, tmp_path / "model" / "z.safetensors", metadata={"format": "pt"})
    merged = merge_adapters(source, tmp_path / "scratch")
    assert merged is not None
    assert set(merged.checkpoint.tensors) == {PLAIN, OTHER}


def test_a_run_beside_the_base_is_not_taken_for_it(tmp_path: Path) -> None:
    """As the Trainer saves with DeepSpeed: a model, and the run that goes on, in one directory."""
    source, directory = saved(tmp_path), tmp_path / "model"
    shutil.copytree(DEEPSPEED / "z2-bf16-w2" / "checkpoint", directory, dirs_exist_ok=True)
    for name in ("model", "consolidated"):
        (directory / f"{name}.safetensors.index.json").write_text("{}")
    merged = merge_adapters(source, tmp_path / "scratch")
    assert merged is not None
    assert set(merged.checkpoint.tensors) == {PLAIN, OTHER}


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    source, directory = saved(tmp_path), tmp_path / "model"
    shutil.copy(directory / FILE, directory / "again.safetensors")
    twice = record_base(directory, [FILE, "again.safetensors"], "nf4")
    record = a_record(lora=LoraRecord(2, SCALE, (), twice))
    with pytest.raises(BadFile, match=r"safetensors holds layer\.\w+\.weight, which another file"):
        with_base(source, record, twice)


def test_a_base_without_a_weight_is_refused(tmp_path: Path) -> None:
    source = saved(tmp_path, "layer.k.weight")
    with pytest.raises(BadFile, match=r"model has no layer\.q\.weight, to which an adapter of"):
        merge_adapters(source, tmp_path / "scratch")
