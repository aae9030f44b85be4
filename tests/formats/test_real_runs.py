"""Run directories that the programs' own writers made, against what the live program held."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.formats.elements import assert_true
from tests.golden_files import DEEPSPEED, GOLDEN
from zerotools.core.checkpoint import Checkpoint
from zerotools.formats import read, training_of
from zerotools.formats.list_run_checkpoints import find_run_listing
from zerotools.io.huggingface.model_sidecars import find_model_sidecars
from zerotools.ops.resume_from_other_program.name_numbered_state import with_names
from zerotools.ops.resume_from_other_program.parameter_order_option import AskedOrder

RUNS = {
    "verl-0.9.1/fsdp2-w2": ("verl", "global_step_4", 2),
    "verl-0.9.1/fsdp2-hsdp-w4": ("verl", "global_step_4", 4),
    "lightning-2.6.6/one-file": (
        "Lightning",
        "lightning_logs/version_0/checkpoints/epoch=0-step=4.ckpt",
        None,
    ),
    "lightning-2.6.6/fsdp2-w2": (
        "Lightning",
        "lightning_logs/version_0/checkpoints/epoch=0-step=4.ckpt",
        2,
    ),
    "llamafactory-0.9.5/trainer": ("LLaMA-Factory", "checkpoint-4", None),
    "openrlhf-0.11.2/sft-z2-w2": ("OpenRLHF", "global_step4", 2),
    "openrlhf-0.11.2/ppo-z3-w2": ("OpenRLHF", "_actor/global_step4", 2),
    "ms-swift-4.6.0/zero2-w2": ("ms-swift", "VERSION/checkpoint-4", 2),
    "ms-swift-4.6.0/lora": ("ms-swift", "VERSION/checkpoint-4", None),
}


@pytest.mark.parametrize(("case", "said"), RUNS.items(), ids=RUNS)
def test_the_newest_checkpoint_is_what_the_program_held(
    case: str, said: tuple[str, str, int | None]
) -> None:
    path = GOLDEN / case / "checkpoint"
    program, newest, world_size = said
    checkpoint = read(path)
    named = in_order(checkpoint) if program == "verl" else checkpoint
    assert_true(named, GOLDEN / case / "truth.safetensors")
    assert checkpoint.origin.world_size == world_size
    assert not checkpoint.problems
    origin = checkpoint.origin.path
    run = find_run_listing(path, origin if origin.is_file() else checkpoint.root)
    assert run is not None
    assert run.program == program
    names = [re.sub(r"v0-\d{8}-\d{6}", "VERSION", e.name) for e in run.checkpoints if e.is_taken]
    assert names == [newest]
    assert {each.fault for each in run.checkpoints} == {None}


def in_order(checkpoint: Checkpoint) -> Checkpoint:
    """With the names for which verl's optimizer has numbers: it got the parameters of the model."""
    training = training_of(checkpoint)
    names = [key.name for key in checkpoint.tensors if key.role == "param"]
    return with_names(checkpoint, training, AskedOrder([names], "the program's own")).checkpoint


def test_the_config_beside_verls_ranks_goes_with_the_model() -> None:
    checkpoint = read(GOLDEN / "verl-0.9.1/fsdp2-w2/checkpoint")
    assert checkpoint.model_sidecars["config.json"].parent.name == "huggingface"


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("sft-z2-w2/checkpoint", "global_step4_hf"),
        ("ppo-z3-w2/checkpoint", "global_step4_hf"),
        ("ppo-z3-w2/checkpoint/_actor/best_global_step2", "best_global_step2_hf"),
        ("ppo-z3-w2/checkpoint/_critic", None),
    ],
)
def test_openrlhfs_model_of_the_same_step_has_the_config(name: str, model: str | None) -> None:
    checkpoint = read(GOLDEN / "openrlhf-0.11.2" / name)
    config = find_model_sidecars(checkpoint.root).get("config.json")
    assert (config and config.parent.name) == model


@pytest.mark.parametrize("case", ["hf-trainer-z2-bf16-w2", "hf-trainer-z3-bf16-w2"])
def test_a_run_of_the_trainer_with_deepspeed(case: str) -> None:
    path: Path = DEEPSPEED / case / "checkpoint"
    run = find_run_listing(path, read(path).root)
    assert run is not None
    assert run.program == "the Trainer of transformers"
    assert [(each.format, each.is_taken) for each in run.checkpoints] == [("deepspeed", True)]
