"""accelerate's `save_state` and the Trainer's directories: the optimizer's file is read too."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.formats.elements import elements
from tests.golden_files import FOREIGN, GOLDEN
from zerotools import formats
from zerotools.core.adapter_tensor_names import names_in_model
from zerotools.core.checkpoint import Key
from zerotools.core.errors import BadRequest
from zerotools.io.torchzip.pt_file import TorchFile
from zerotools.ops.conversions import consolidate
from zerotools.ops.conversions.convert import prepare_convert

ACCELERATE = FOREIGN / "accelerate-ddp" / "checkpoint"
TRAINER = FOREIGN / "hf-trainer" / "checkpoint" / "checkpoint-3"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ACCELERATE, tmp_path / "saved"))


def test_the_state_of_accelerate_is_read_with_the_weights() -> None:
    found = formats.read(ACCELERATE)
    state = formats.training_of(found)
    assert [len(group.params) for group in state.groups] == [16, 5]
    assert (state.optimizer, len(state.unnamed), len(found.tensors)) == ("AdamW", 21, 84)
    tree = TorchFile.open(ACCELERATE, "optimizer.bin").tree["state"][1]["exp_avg"]
    assert elements(found, Key("optimizer.state.1", "exp_avg")).shape == tree.shape
    assert found.origin.notes[0].endswith("2 files of random state")
    assert any("no file has the names" in note for note in found.origin.notes)


def test_the_trainer_says_its_step_and_its_schedule() -> None:
    found = formats.read(TRAINER)
    state = formats.training_of(found)
    assert state.steps == 3
    assert state.lr_scheduler["last_epoch"] == 3
    assert found.files.keys() == {"model.safetensors", "optimizer.pt"}


def test_the_trainer_says_its_step_next_to_a_sharded_optimizer(tmp_path: Path) -> None:
    run = GOLDEN / "transformers-5.23.0-lora" / "fsdp2-sharded" / "checkpoint" / "checkpoint-2"
    found = formats.read(run)
    assert (found.origin.format, formats.training_of(found).steps) == ("dcp", 2)
    copy = Path(shutil.copytree(run, tmp_path / "run"))
    (copy / "trainer_state.json").unlink()
    assert formats.training_of(formats.read(copy)).steps is None


def test_a_file_of_weights_means_the_weights_alone() -> None:
    found = formats.read(ACCELERATE / "model.safetensors")
    assert {key.role for key in found.tensors} == {"param"}


def test_weights_are_exported_whatever_the_optimizer_is(saved: Path, tmp_path: Path) -> None:
    (saved / "optimizer.bin").write_bytes((saved / "optimizer.bin").read_bytes()[:-500])
    found = formats.read(saved)
    assert [problem.file for problem in found.problems] == ["optimizer.bin"]
    assert {key.role for key in found.tensors} == {"param"}
    assert (
        len(
            consolidate.prepare_export(
                saved, tmp_path / "model", consolidate.Options()
            ).target.checkpoint.tensors
        )
        == 21
    )
    with pytest.raises(BadRequest, match=r"has optimizer.bin, which cannot be read"):
        prepare_convert(saved, tmp_path / "out", "torch", {})
    prepare_convert(saved, tmp_path / "out", "torch", {"weights_only": True})


def test_the_optimizer_beside_a_model_that_torch_saved(tmp_path: Path) -> None:
    """As accelerate saves FSDP with FULL_STATE_DICT, and as the Trainer saved once."""
    source = GOLDEN / "transformers-5.23.0-lora" / "fsdp2-full" / "checkpoint" / "checkpoint-2"
    for name in ("pytorch_model_fsdp.bin", "optimizer.bin"):
        shutil.copy(source / name, tmp_path)
    found = formats.read(tmp_path)
    assert found.files.keys() == {"pytorch_model_fsdp.bin", "optimizer.bin"}
    weights = {key.name for key in found.tensors if key.role == "param"}
    first, _ = formats.training_of(found).groups
    assert set(first.params) == weights
    assert "optimizer.bin" not in formats.read(tmp_path / "pytorch_model_fsdp.bin").files


def test_several_optimizers_are_named_and_not_read(saved: Path, tmp_path: Path) -> None:
    shutil.copy(saved / "optimizer.bin", saved / "optimizer_1.bin")
    found = formats.read(saved)
    assert "several optimizers, which zerotools does not read" in found.origin.notes[-1]
    with pytest.raises(BadRequest, match=r"has optimizer.bin, optimizer_1.bin, which cannot"):
        prepare_convert(saved, tmp_path / "out", "dcp", {"world_size": 1})


def test_no_weight_takes_the_name_of_another() -> None:
    saved, trained = (f"base_model.model.q.lora_A{name}.weight" for name in ("", ".default"))
    assert names_in_model([saved], [trained]) == {saved: trained}
    assert names_in_model([saved, trained], [trained]) == {}
