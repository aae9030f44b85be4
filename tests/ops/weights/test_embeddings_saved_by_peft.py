"""Embeddings of a run of the Trainer that only PEFT's own file has, next to trained weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from tests.io.stores.far import put_directory, served
from tests.ops.exports import export, model, noise
from tests.ops.weights.test_add_base_model_weights import (
    CONFIG,
    LORA_A,
    LORA_B,
    PREFIX,
    WEIGHTS,
    adapter,
)
from zerotools.core.errors import BadFile
from zerotools.io.numeric.dtype_casts import Array
from zerotools.ops.conversions.consolidate import Options, prepare_export
from zerotools.ops.conversions.conversion import perform_conversion
from zerotools.ops.execution.tile_workers import MemoryBudget

EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
GROWN = {EMBEDDING: noise(7, 6, seed=8), HEAD: noise(7, 6, seed=9)}
OWN = {f"{PREFIX}.q.lora_A.weight": LORA_A, f"{PREFIX}.q.lora_B.weight": LORA_B}


def run(directory: Path, beside: dict[str, Array], **trained: Array) -> Path:
    """A checkpoint of the Trainer: what was trained is in `model`, PEFT's file is above it."""
    adapter(directory / "model", **trained)
    (directory / "model" / "adapter_config.json").rename(directory / "adapter_config.json")
    save_file(beside, directory / "adapter_model.safetensors")
    return directory / "model"


def small(directory: Path) -> Path:
    """The base model, with the vocabulary that it had before."""
    own = {**WEIGHTS, EMBEDDING: noise(5, 6, seed=8), HEAD: noise(5, 6, seed=9)}
    return model(directory, own, config__json=json.dumps({"vocab_size": 5}))


def saved(*names: str) -> dict[str, Array]:
    return {**OWN, **{f"base_model.model.{name}": GROWN[name] for name in names}}


def alone(source: Path, out: Path) -> tuple[dict[str, Array], list[str]]:
    conversion = prepare_export(source, out, Options(adapter_only=True))
    perform_conversion(conversion, budget=MemoryBudget(), overwrite=False, verify=True)
    return load_file(out / "adapter_model.safetensors"), list(conversion.notes)


def test_a_grown_vocabulary_that_was_not_trained_is_exported(tmp_path: Path) -> None:
    source = run(tmp_path / "run", saved(EMBEDDING, HEAD))
    merged = export(source, tmp_path / "out", base=small(tmp_path / "base"), dtype="fp32")
    for name, values in GROWN.items():
        np.testing.assert_array_equal(merged[name], values)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["vocab_size"] == 7
    adapter_alone, notes = alone(source, tmp_path / "adapter")
    assert adapter_alone.keys() == saved(EMBEDDING, HEAD).keys()
    file = tmp_path / "run" / "adapter_model.safetensors"
    why = f"from {file}, because the checkpoint has only trained weights"
    assert f"took {EMBEDDING} and {HEAD} {why}" in notes


def test_what_was_trained_is_not_taken_from_there(tmp_path: Path) -> None:
    trained = noise(7, 6, seed=10)
    config: dict[str, Any] = {**CONFIG, "modules_to_save": ["lm_head"]}
    source = run(
        tmp_path / "run",
        saved(EMBEDDING, HEAD),
        **{"base_model.model.lm_head.modules_to_save.default.weight": trained},
    )
    (tmp_path / "run" / "adapter_config.json").write_text(json.dumps(config))
    merged = export(source, tmp_path / "out", base=small(tmp_path / "base"), dtype="fp32")
    np.testing.assert_array_equal(merged[HEAD], trained)
    np.testing.assert_array_equal(merged[EMBEDDING], GROWN[EMBEDDING])


@pytest.mark.parametrize("other", ["rank", "layer", "nothing"])
def test_the_file_of_another_adapter_is_left_alone(other: str, tmp_path: Path) -> None:
    beside = saved(EMBEDDING)
    down = f"{PREFIX}.q.lora_A.weight"
    if other == "rank":
        beside[down] = noise(3, 6)
    elif other == "layer":
        beside["base_model.model.layers.1.q.lora_A.weight"] = beside.pop(down)
    else:
        del beside[f"base_model.model.{EMBEDDING}"]
    source = run(tmp_path / "run", beside)
    found, notes = alone(source, tmp_path / "adapter")
    assert found.keys() == OWN.keys()
    assert not any("adapter_model" in note for note in notes)


def test_a_damaged_file_ends_the_export(tmp_path: Path) -> None:
    source = run(tmp_path / "run", saved(EMBEDDING))
    (tmp_path / "run" / "adapter_model.safetensors").write_bytes(b"version https://git-lfs")
    with pytest.raises(BadFile, match="adapter_model"):
        alone(source, tmp_path / "adapter")


def test_run_and_base_may_be_in_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    near, small_one = run(tmp_path / "run", saved(EMBEDDING, HEAD)), small(tmp_path / "base")
    with served(monkeypatch) as store:
        far = put_directory(store, tmp_path / "run", "deep/run") / "model"
        small_far = put_directory(store, small_one, "deep/base")
        for number, (source, base) in enumerate(
            ((far, small_one), (far, small_far), (near, small_far))
        ):
            merged = export(source, tmp_path / f"out-{number}", base=base, dtype="fp32")
            for name, values in GROWN.items():
                np.testing.assert_array_equal(merged[name], values)
