from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import zerotools
from tests.golden_files import DEEPSPEED, GOLDEN, TORCH
from zerotools.core.checkpoint import Key
from zerotools.formats import read_any
from zerotools.ops.inspection.inspect import inspect
from zerotools.ops.inspection.next_commands import is_model, next_commands


def commands(path: Path) -> tuple[str, ...]:
    return next_commands(inspect(read_any(path)), path)


def test_shards_are_merged_or_made_for_other_ranks() -> None:
    path = DEEPSPEED / "z2-fp32-w2" / "checkpoint"
    assert commands(path) == (
        f"zerotools consolidate {path} checkpoint-model",
        f"zerotools reshard {path} checkpoint-1-ranks --world-size 1",
    )


def test_what_one_rank_wrote_is_merged_alone() -> None:
    path = DEEPSPEED / "z1-fp32-w1" / "checkpoint"
    assert commands(path) == (f"zerotools consolidate {path} checkpoint-model",)


@pytest.mark.parametrize(
    ("case", "ranks"),
    [
        ("z2-bf16-w3", 1),
        ("pipeline-z1-fp32-w4", 2),
        ("tensor-parallel-z2-fp32-w2", None),
        ("experts-z2-bf16-w2", None),
        ("autoep-z2-bf16-w4", None),
        ("z0-fp32-w2", None),
    ],
)
def test_ranks_are_changed_where_that_is_possible(case: str, ranks: int | None) -> None:
    path = DEEPSPEED / case / "checkpoint"
    again = f"zerotools reshard {path} checkpoint-{ranks}-ranks --world-size {ranks}"
    merge = f"zerotools consolidate {path} checkpoint-model"
    assert commands(path) == ((merge,) if ranks is None else (merge, again))
    assert zerotools.inspect(path).next == commands(path)


def test_what_is_not_resharded_is_merged_alone() -> None:
    path = TORCH / "fsdp2-verl-w3" / "checkpoint"
    assert commands(path) == (f"zerotools consolidate {path} checkpoint-model",)


def test_a_path_is_quoted_for_the_shell(tmp_path: Path) -> None:
    path = tmp_path / "it's a run; true"
    shutil.copytree(TORCH / "fsdp2-verl-w3" / "checkpoint", path)
    (command,) = commands(path)
    assert command.endswith("""it'"'"'s a run; true' 'it'"'"'s a run; true-model'""")


def test_what_chose_the_checkpoint_is_said_again() -> None:
    path = DEEPSPEED / "z2-bf16-w2-tags" / "checkpoint"
    found = next_commands(inspect(read_any(path)), path, given=("--tag", "a b"))
    assert found[0] == f"zerotools consolidate {path} --tag 'a b' checkpoint-model"


def test_the_name_of_the_directory_where_one_is(monkeypatch: pytest.MonkeyPatch) -> None:
    path = TORCH / "fsdp2-verl-w3" / "checkpoint"
    monkeypatch.chdir(path)
    inspection = inspect(read_any(path))
    assert next_commands(inspection, Path()) == ("zerotools consolidate . checkpoint-model",)


def test_names_of_a_program_are_mapped() -> None:
    path = GOLDEN / "megatron-core-0.16.1" / "dense-tp2-pp2" / "checkpoint"
    assert commands(path)[0].endswith("--map-to hf --config-dir MODEL_DIR")


def test_what_has_holes_is_salvaged(tmp_path: Path) -> None:
    path = tmp_path / "run"
    shutil.copytree(TORCH / "fsdp2-verl-w3" / "checkpoint", path)
    (path / "model_world_size_3_rank_1.pt").unlink()
    assert commands(path) == (f"zerotools salvage {path} run-model",)


def test_of_a_model_nothing_is_merged(tmp_path: Path) -> None:
    model = GOLDEN / "continued"
    found = next(path.parent for path in model.rglob("model.safetensors"))
    shutil.copytree(found, tmp_path / "model")
    (tmp_path / "model/config.json").write_text("{}")
    inspection = inspect(read_any(tmp_path / "model"))
    assert is_model(inspection)
    assert next_commands(inspection, tmp_path / "model") == ()


def test_an_adapter_is_exported_or_merged(tmp_path: Path) -> None:
    path = tmp_path / "run"
    path.mkdir()
    half = {f"q.{each}.default.weight": np.zeros((2, 2), "f4") for each in ("lora_A", "lora_B")}
    save_file(half, path / "model.safetensors")
    command = f"zerotools consolidate {path} run-adapter --adapter-only"
    merge = f"zerotools consolidate {path} run-model"
    assert commands(path) == (command, f"{merge} --base BASE_DIR")
    scale = " --adapter-config ADAPTER_DIR"  # no file of the run says it
    both = (command + scale, f"{merge} --base BASE_DIR{scale}")
    assert zerotools.inspect(path).next == both  # also outside of a program's run
    (path / "adapter_config.json").write_text("{}")
    assert zerotools.inspect(path).next == commands(path)
    save_file(
        {**half, "q.base_layer.weight": half["q.lora_A.default.weight"]}, path / "model.safetensors"
    )
    assert commands(path) == (merge, command)


def test_an_adapter_of_megatron_gets_the_names_of_its_model() -> None:
    path = GOLDEN / "megatron-bridge-0.3.1" / "lora" / "checkpoint"
    command = f"zerotools consolidate {path} checkpoint-adapter --adapter-only"
    assert commands(path) == (
        f"{command} --map-to hf --config-dir MODEL_DIR",
        f"zerotools consolidate {path} checkpoint-model --base BASE_DIR",
    )


def test_the_attribute_that_wraps_a_model_is_stripped() -> None:
    path = TORCH / "fsdp2-verl-w3" / "checkpoint"
    inspection = inspect(read_any(path))
    tensors = inspection.checkpoint.tensors
    wrapped = {Key(f"model.layer.{key.name}", key.role): each for key, each in tensors.items()}
    named = replace(inspection, checkpoint=replace(inspection.checkpoint, tensors=wrapped))
    (command,) = next_commands(named, path, wraps_models=True)
    assert command.endswith(" --strip-prefix model.")
    assert "--strip-prefix" not in next_commands(named, path)[0]


def test_shards_that_stayed_in_another_directory_are_gathered(tmp_path: Path) -> None:
    """The Trainer's rename reached the files of one node: salvage would lose the other half."""
    path, other = tmp_path / "checkpoint-2", tmp_path / "tmp-checkpoint-2"
    shutil.copytree(DEEPSPEED / "hf-trainer-z2-bf16-w2" / "checkpoint" / "checkpoint-2", path)
    (other / "global_step2").mkdir(parents=True)
    (lost,) = path.rglob("*rank_1*optim_states.pt")
    moved = other / lost.relative_to(path)
    lost.rename(moved)
    assert commands(path) == (f"zerotools gather {path} {other} checkpoint-2-whole",)
    for name in ("checkpoint-20", "best-checkpoint-2"):  # other saves
        shutil.move(other, other := tmp_path / name)
        assert commands(path)[0].startswith(f"zerotools salvage {path} ")
