"""An imported config trains what its author trained, where nobody says otherwise."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.jobs.imports.jobs import (
    JOB,
    TRAINERS,
    a_job,
    accelerate_text,
    autos,
    ds_text,
    report,
    said,
)
from zerotools.jobs.imports.combine_configs import Imported, import_configs
from zerotools.jobs.imports.reading.import_report import KeyOutcome
from zerotools.jobs.text.json_parser import parse_json

BATCH = JOB + "batch_size = 8\n"
ENGINE = 'engine = "deepspeed"\n' + BATCH
FREE = JOB.replace("gpus = 2", "") + "batch_size = 16\n"


def trained(config: dict[str, Any], job: str = BATCH) -> dict[str, Any]:
    """`[train]` of what comes of `config`."""
    imported = ds_text(json.dumps(config), a_job(job))
    assert imported.problem is None
    train = imported.tree["train"]
    assert isinstance(train, dict)
    return train


def defaults(imported: Imported) -> dict[str | None, str]:
    """By job key, why a default was or was not taken."""
    rows = imported.findings.rows
    return {row.job: row.why for row in rows if row.outcome is KeyOutcome.DEFAULT}


@pytest.mark.parametrize("job", [BATCH, ENGINE], ids=["torch", "deepspeed"])
def test_without_optimizer_and_scheduler_it_is_the_trainers_adamw(job: str) -> None:
    assert trained({"zero_optimization": {"stage": 2}}, job).items() >= TRAINERS.items()


def test_deepspeed_is_given_the_trainers_adamw_too() -> None:
    imported = ds_text('{"zero_optimization": {"stage": 2}}', a_job(ENGINE))
    assert imported.deepspeed is not None
    assert imported.deepspeed["optimizer"] == {
        "type": "AdamW",
        "params": {"lr": 5e-5, "weight_decay": 0.0, "betas": [0.9, 0.999], "eps": 1e-8},
    }


def test_auto_is_the_trainers_default_where_the_job_file_is_silent() -> None:
    optimizer = {"type": "AdamW", "params": dict.fromkeys(("lr", "betas", "weight_decay"), "auto")}
    scheduler = {"type": "WarmupDecayLR", "params": {"warmup_num_steps": "auto"}}
    scheduler["params"] |= {"warmup_max_lr": "auto", "total_num_steps": "auto"}
    found = trained({"optimizer": optimizer, "scheduler": scheduler})
    assert found.items() >= {**TRAINERS, "schedule": "linear", "warmup_steps": 0}.items()


def test_what_the_job_file_says_wins_and_the_report_lists_it() -> None:
    imported = ds_text("{}", a_job(BATCH + "learning_rate = 1e-3\nweight_decay = 0.1\n"))
    assert imported.tree["train"]["learning_rate"] == 1e-3
    assert imported.tree["train"]["weight_decay"] == 0.1
    assert imported.tree["train"]["betas"] == [0.9, 0.999]
    why = defaults(imported)
    assert why["train.learning_rate"] == "not taken: job.toml train.learning_rate says 0.001"
    assert why["train.weight_decay"] == "not taken: job.toml train.weight_decay says 0.1"
    assert why["train.betas"] == "the Trainer's default"
    assert {*why} >= {f"train.{name}" for name in TRAINERS}


def test_accelerate_without_deepspeed_trains_as_the_trainer_too() -> None:
    imported = accelerate_text("distributed_type: FSDP\n", a_job(FREE))
    assert imported.tree["train"].items() >= TRAINERS.items()


def test_sgd_of_the_job_file_is_not_given_adamws_settings() -> None:
    found = trained({}, BATCH + 'optimizer = "sgd"\n')
    assert (found["optimizer"], found["weight_decay"]) == ("sgd", 0.0)
    assert "betas" not in found


@pytest.mark.parametrize(
    ("params", "decay"),
    [
        ({"torch_adam": True}, 0.01),
        ({"torch_adam": "torch_impl"}, 0.01),
        ({"torch_adam": False}, 0.0),
        ({"torch_adam": True, "adam_w_mode": False}, 0.0),
        ({"torch_adam": True, "weight_decay": 0.2}, 0.2),
    ],
)
def test_torchs_own_adam_decays_by_its_own_default(params: dict[str, Any], decay: float) -> None:
    config = {"optimizer": {"type": "Adam", "params": params}}
    assert trained(config)["weight_decay"] == decay
    assert trained(config, ENGINE)["weight_decay"] == decay


def test_engine_deepspeed_writes_torchs_decay_out() -> None:
    """So that the engine's groups leave one-dimensional tensors alone, as they do elsewhere."""
    config = '{"optimizer": {"type": "AdamW", "params": {"torch_adam": true}}}'
    found = ds_text(config, a_job(ENGINE)).deepspeed
    assert found is not None
    assert found["optimizer"]["params"]["weight_decay"] == 0.01


class TestAuto:
    STAGE = '{"zero_optimization": {"stage": "auto"}, "train_batch_size": 8}'
    YAML = "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_config_file: x.json\n"

    def test_the_stage_of_auto_is_2(self) -> None:
        assert ds_text(self.STAGE, a_job()).tree["zero"]["stage"] == 2
        assert autos(ds_text(self.STAGE, a_job())) == {"zero_optimization.stage": 2}

    def test_the_job_files_stage_wins(self) -> None:
        imported = ds_text(self.STAGE, a_job(JOB + "[zero]\nstage = 3\n"))
        assert imported.tree["zero"]["stage"] == 3

    @pytest.mark.parametrize(
        ("yaml", "precision"), [("", "fp32"), ("mixed_precision: fp16\n", "fp16")]
    )
    def test_report_and_job_have_the_precision_of_accelerate(
        self, yaml: str, precision: str
    ) -> None:
        from zerotools.jobs.text.yaml_parser import parse_yaml

        both = '{"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}'
        imported = import_configs(
            a_job(FREE),
            accelerate=parse_yaml(self.YAML + yaml, source="acc.yaml"),
            load=lambda name: parse_json(both, source=name),
        )
        assert imported.tree["train"]["precision"] == precision
        assert autos(imported) == {"bf16.enabled": False, "fp16.enabled": precision == "fp16"}


class TestReleases:
    def test_without_gradient_clipping_the_release_decides(self) -> None:
        document = parse_json('{"train_batch_size": 8}', source="ds.json")
        for release, norm in (((0, 19, 2), 0.0), ((0, 19, 3), 1.0), ((0, 16, 4), 0.0)):
            imported = import_configs(a_job(), deepspeed=document, release=release)
            assert imported.tree["train"]["max_grad_norm"] == norm
        told = defaults(import_configs(a_job(), deepspeed=document, release=(0, 16, 4)))
        assert told["train.max_grad_norm"] == "DeepSpeed 0.16.4 does not clip"


def test_a_warm_up_of_nothing_is_told_apart() -> None:
    config = {"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}}}
    imported = ds_text(json.dumps(config), a_job(BATCH))
    assert imported.tree["train"]["warmup_steps"] == 0
    text = report(imported)
    assert (
        "DeepSpeed takes its first two steps at learning rate 0; this job has no such step" in text
    )


def test_warm_up_decay_without_a_peak_is_not_the_trainers_rate() -> None:
    optimizer = {"type": "AdamW", "params": {"lr": "auto"}}
    scheduler = {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 10}}
    config = {"optimizer": optimizer, "scheduler": scheduler}
    assert "rises to 0.001" in said(ds_text(json.dumps(config), a_job(BATCH)))


def test_a_stage_2_file_of_accelerate_may_name_parameter_offload() -> None:
    section = "deepspeed_config:\n  zero_stage: 2\n  offload_param_device: cpu\n"
    for engine in ("torch", "deepspeed"):
        job = a_job(f'engine = "{engine}"\n{FREE}')
        imported = accelerate_text(f"distributed_type: DEEPSPEED\n{section}", job)
        assert imported.problem is None
        assert "offload_param" not in str(imported.deepspeed)
        row = next(r for r in imported.findings.rows if r.key.endswith("offload_param_device"))
        assert row.outcome is KeyOutcome.IGNORED
        assert row.why.startswith("has an effect only at stage 3, and the stage is 2")


@pytest.mark.parametrize(("stage", "told"), [(0, True), (1, False)])
def test_the_step_before_the_first_is_told(stage: int, told: bool) -> None:
    config = {"bf16": {"enabled": True}, "zero_optimization": {"stage": stage}}
    lines = report(ds_text(json.dumps(config), a_job(ENGINE)))
    assert ("first takes an extra optimizer step with zero gradients" in lines) is told
    silent = {"bf16": {"enabled": True}, "train_batch_size": 8}
    lines = report(ds_text(json.dumps(silent), a_job(ENGINE)))
    assert "first takes an extra optimizer step with zero gradients" in lines
