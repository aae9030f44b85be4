"""DeepSpeed's configuration is held against its job, and completed by it."""

from __future__ import annotations

from typing import Any

import pytest

from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.jobfile_tables.complete_deepspeed_config import completed_config, offloaded_to
from zerotools.jobs.jobfile_tables.deepspeed import device_of, on_nvme, precision_of, stage_of
from zerotools.jobs.jobfile_tables.spec import JobSpec

STAGE_1 = {"zero_optimization": {"stage": 1}}
ADAM = {"type": "AdamW", "params": {"lr": 1e-4}}


def job(config: dict[str, Any], **changes: Any) -> JobSpec:
    train = {"steps": 9, "batch_size": 12, "precision": "fp32", **changes.pop("train", {})}
    tree = {
        "engine": "deepspeed",
        "device": "cpu",
        "ranks": 2,
        "model": {"config": {"model_type": "llama"}},
        "data": {"text": ["/a.txt"]},
        "zero": {"stage": stage_of(config)},
        "train": train,
        "deepspeed": {"config": config},
        **changes,
    }
    return job_from_dict(tree, source="job")


def refusal(config: dict[str, Any], **changes: Any) -> str:
    with pytest.raises(BadRequest) as info:
        job(config, **changes)
    return str(info.value)


def test_what_is_there_stays() -> None:
    config = {
        "train_micro_batch_size_per_gpu": 3,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.5,
        "optimizer": {"type": "Lion", "params": {"lr": 1.0}},
        "moe": {"enabled": True},
    }
    assert completed_config(job(config, train={"max_grad_norm": 2.0})) == config


def test_what_is_missing_comes_from_the_job_where_deepspeeds_default_is_another() -> None:
    train = {"learning_rate": 1e-4, "max_grad_norm": 0.0, "weight_decay": 0.0, "eps": 1e-6}
    found = completed_config(job({"optimizer": ADAM}, train=train))
    assert found == {
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95], "eps": 1e-6}},
        "train_micro_batch_size_per_gpu": 6,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": 0.0,
    }


def test_an_empty_config_becomes_the_job() -> None:
    train = {"precision": "bf16", "micro_batch_size": 2, "optimizer": "sgd", "steps": 9}
    found = completed_config(job({"zero_optimization": {}}, train=train, zero={"stage": 0}))
    assert found["gradient_accumulation_steps"] == 3
    assert found["bf16"] == {"enabled": True}
    assert found["gradient_clipping"] == 1.0
    assert found["optimizer"] == {
        "type": "SGD",
        "params": {"lr": 3e-4, "weight_decay": 0.1, "momentum": 0.9},
    }


def test_a_scheduler_is_told_the_steps_and_the_scale_the_jobs_numbers() -> None:
    train = {"precision": "fp16", "warmup_steps": 4}
    config = {"scheduler": {"type": "WarmupDecayLR"}, "optimizer": ADAM, **STAGE_1}
    fp16 = {"hysteresis": 4}
    spec = job(config, train=train, fp16=fp16, env={"ZEROTOOLS_FP16_ON_CPU": "1"})
    found = completed_config(spec)
    assert found["scheduler"]["params"] == {"warmup_num_steps": 4, "total_num_steps": 9}
    assert found["fp16"] == {"enabled": True, "hysteresis": 4}


def test_disagreements_name_both_places() -> None:
    assert "train_batch_size = 8: train.batch_size is 12" in refusal({"train_batch_size": 8})
    batch = {"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": 3}
    assert "gradient_accumulation_steps = 3: " in refusal(batch)
    found = refusal({"zero_optimization": {"stage": 2}}, zero={"stage": 3})
    assert "zero_optimization.stage = 2: zero.stage is 3" in found
    assert 'bf16.enabled = true: train.precision is "fp32"' in refusal({"bf16": {"enabled": True}})


def test_what_cannot_be_committed_or_resolved_is_refused() -> None:
    assert "nebula: writes checkpoints in the background" in refusal({"nebula": {"enabled": True}})
    writer = {"checkpoint": {"writer": {"type": "fast", "decoupled": True}}}
    assert "checkpoint.writer: writes checkpoints" in refusal(writer)
    universal = {"checkpoint": {"load_universal": True}}
    assert "run zerotools reshard first" in refusal(universal)
    found = refusal({"optimizer": {"type": "AdamW", "params": {"lr": "auto"}}})
    assert 'optimizer.params.lr = "auto": only zerotools submit replaces it' in found


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"sequence_parallel_size": 2}, "sequence_parallel_size = 2: makes several ranks compute"),
        ({"tensor_parallel": {"autotp_size": 2}}, "autotp_size = 2: makes several ranks compute"),
        ({"autotuning": {"enabled": True}}, "autotuning.enabled = true: only tries settings"),
        ({"data_efficiency": {"enabled": True}}, "enabled = true: works in DeepSpeed's data"),
    ],
)
def test_what_needs_another_loop_is_refused(config: dict[str, Any], said: str) -> None:
    assert said in refusal(config)


def test_what_is_switched_off_may_be_there() -> None:
    off = {"sequence_parallel_size": 1, "autotuning": {"enabled": False}}
    job({**off, "tensor_parallel": {"autotp_size": 0}})


def test_a_micro_batch_that_does_not_divide_is_refused() -> None:
    found = refusal({"train_micro_batch_size_per_gpu": 4})
    assert "train_micro_batch_size_per_gpu = 4: must divide the 6 sequences of a rank" in found


def test_fp16_at_stage_0_is_refused() -> None:
    """DeepSpeed 0.19.8: `FP16_Optimizer.backward`, which scaled the loss, has no caller."""
    half = {"train": {"precision": "fp16"}, "env": {"ZEROTOOLS_FP16_ON_CPU": "1"}}
    fp16 = {"fp16": {"enabled": True}}
    assert "set stage 1, or bf16" in refusal(fp16, **half)
    job({**fp16, **STAGE_1}, **half)


def test_null_is_as_if_it_were_not_there() -> None:
    nothing = {"zero_optimization": None, "optimizer": None, "bf16": None, "scheduler": None}
    train = {"precision": "bf16"}
    assert completed_config(job(nothing, train=train)) == completed_config(
        job({"moe": None}, train=train)
    )


def test_where_state_is_by_the_job_files_names() -> None:
    cpu, nvme = {"device": "cpu"}, {"device": "nvme", "nvme_path": "/n"}
    both = {"stage": 3, "offload_optimizer": nvme, "offload_param": cpu}
    assert offloaded_to(job({"zero_optimization": both})) == ("disk", "cpu")
    both |= {"offload_optimizer": cpu, "offload_param": nvme}
    assert offloaded_to(job({"zero_optimization": both})) == ("cpu", "disk")
    assert offloaded_to(job({"zero_optimization": {"stage": 1}})) == ("none", "none")


def test_the_engine_and_its_table_belong_together() -> None:
    assert "needs deepspeed.config" in refusal({}, deepspeed={})
    assert "end at the first such step; leave it out" in refusal({}, train={"stop_after_nan": 2})
    assert 'offload: only engine = "torch" has this key' in refusal(
        {}, offload={"optimizer": "cpu"}
    )
    assert "cannot be used in an engine" in refusal({"fp16": {}}, engine="torch")


@pytest.mark.parametrize("what", ["optimizer", "param"])
def test_offload_to_nvme_needs_stage_3_and_a_path(what: str) -> None:
    def zero(stage: int, **path: str) -> dict[str, Any]:
        section = {"stage": stage, f"offload_{what}": {"device": "nvme", **path}}
        return {"zero_optimization": section}

    assert "only at stage 3" in refusal(zero(2, nvme_path="/n"))
    assert "needs nvme_path in the same section" in refusal(zero(3))
    assert "the absolute path of a directory" in refusal(zero(3, nvme_path="nvme"))
    assert on_nvme(job(zero(3, nvme_path="/n")).deepspeed.tree)
    told = refusal(zero(3, nvme_path="/n"), lora={"rank": 4})
    assert "not the adapters; leave [lora] out" in told


def test_old_spellings_are_read() -> None:
    old = {"zero_optimization": {"stage": 2, "cpu_offload": True}, "bfloat16": {"enabled": True}}
    assert device_of(old, "optimizer") == "cpu"
    assert device_of(old, "param") == "none"
    assert precision_of(old) == "bf16"
    assert stage_of({"zero_optimization": True}) == 1
