"""The peers agree: on what "auto" becomes, on the keys there are, on what a config may be."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from harness import forked
from tests.jobs.imports.jobs import JOB, a_job, ds
from zerotools.jobs.imports.reading.config_reader import TRAINER
from zerotools.jobs.launcher_keys.deepspeed_keys import KEYS, SECTIONS
from zerotools.jobs.launcher_keys.deepspeed_releases import NEWEST, default_clipping
from zerotools.jobs.launcher_keys.trainer_keys import TRAINER_DEFAULTS

pytestmark = pytest.mark.deepspeed


# With the number of ranks on which DeepSpeed's own check of the batch sizes holds.
TAKEN = {
    "zero3_auto.json": JOB.replace("gpus = 2", "gpus = 1") + "batch_size = 8\n",
    "two_cards_stage2.json": JOB.replace("gpus = 2", "gpus = 1"),
}


@pytest.fixture(scope="module")
def peers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """All that the peers say, by one process: they take seconds to import."""
    folder = tmp_path_factory.mktemp("taken")
    for name, job in TAKEN.items():
        (folder / name).write_text(json.dumps(ds(name, a_job(job)).deepspeed))
    program = ["-m", "tests.jobs.imports.peers", *(str(folder / name) for name in TAKEN)]
    env = {**os.environ, "DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}
    said = forked.output(forked.DEEPSPEED, program, env=env, timeout=120)
    told = json.loads(said.rsplit("\n", 1)[1])
    assert isinstance(told, dict)
    return told


def test_the_trainer_resolves_every_auto_to_the_same(peers: dict[str, Any]) -> None:
    job = JOB + "batch_size = 16\nmicro_batch_size = 4\nlearning_rate = 1e-4\n"
    assert ds("zero3_auto.json", a_job(job)).deepspeed == peers["trainer"]


def test_the_table_has_every_field_of_deepspeed_with_its_default(peers: dict[str, Any]) -> None:
    fields = peers["fields"]
    assert sorted(set(fields) - set(KEYS) - SECTIONS) == []
    differing = {
        name: (KEYS[name].default, default)
        for name, default in fields.items()
        if name in KEYS and KEYS[name].default is not None and default is not None
        if KEYS[name].default != default
    }
    assert differing == {}


def test_deepspeed_clips_without_being_told(peers: dict[str, Any]) -> None:
    assert peers["clipping"] == default_clipping(NEWEST)


def test_deepspeed_takes_what_it_would_be_given(peers: dict[str, Any]) -> None:
    assert peers["accepts"] == ["", ""]


def test_the_defaults_of_a_launch_line_are_the_trainers(peers: dict[str, Any]) -> None:
    said = {**peers["defaults"], "precision": "fp32"}
    assert {name: said[name] for name in TRAINER_DEFAULTS} == TRAINER_DEFAULTS


def test_the_trainers_defaults_are_those_of_the_table(peers: dict[str, Any]) -> None:
    said = peers["defaults"]
    assert said["optim"].startswith("adamw")
    assert {
        "train.optimizer": "adamw",
        "train.learning_rate": said["learning_rate"],
        "train.betas": (said["adam_beta1"], said["adam_beta2"]),
        "train.eps": said["adam_epsilon"],
        "train.weight_decay": said["weight_decay"],
        "train.max_grad_norm": said["max_grad_norm"],
        "train.schedule": said["lr_scheduler_type"],
        "train.warmup_steps": said["warmup_steps"],
        "zero.stage": 2,
    } == TRAINER


def test_at_stage_0_in_bf16_deepspeed_takes_a_step_on_zeros_first(peers: dict[str, Any]) -> None:
    """runtime/fp16/unfused_optimizer.py and fused_optimizer.py, initialize_optimizer_states."""
    losses = peers["first step"]
    assert losses["stage 0"] == losses["torch after a step on 0"]
    assert losses["stage 1"] == losses["torch"]
    assert losses["stage 0"] != losses["stage 1"]


def test_accelerate_takes_stage_2_where_nobody_says(peers: dict[str, Any]) -> None:
    assert peers["accelerate"] == {"auto": 2, "silent": 2, "offloaded": 2}
