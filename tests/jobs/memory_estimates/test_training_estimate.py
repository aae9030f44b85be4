"""The estimate of jobs, and the configs that ask for what it chose."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.fake_gpu_probe import FakeProbe, fake_gpu
from tests.ops.estimate.tiny_configs import config
from zerotools.core.errors import BadRequest, Unsupported
from zerotools.core.training_memory_layout import MemoryLayout
from zerotools.jobs.jobfile.memory_layout_of_job import memory_layout_of
from zerotools.jobs.jobfile.parse import given_of, job_from_dict, read_tree
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.memory_estimates.fill_missing_keys import whole_job
from zerotools.jobs.memory_estimates.job_workload import with_ranks, workload_of
from zerotools.jobs.memory_estimates.training_estimate import (
    Estimate,
    TrainingSettings,
    attention_assumption,
    estimate_job,
    estimate_model,
    kernels_of,
    offload_of,
)
from zerotools.ops.estimate.activation_memory import EAGER, MicroBatch, attention_on_gpus
from zerotools.ops.estimate.parameter_shapes import of_count
from zerotools.ops.estimate.rank_memory import Machine

GIB = 1 << 30


V100 = replace(fake_gpu(1, compute_capability=(7, 0)), name="V100")


def job(**changes: Any) -> dict[str, Any]:
    tree: dict[str, Any] = {
        "gpus": 2,
        "model": {"config": config("llama")},
        "data": {"text": ["/text"], "sequence_length": 64},
        "train": {"steps": 1, "batch_size": 8, "precision": "bf16"},
    }
    for name, value in changes.items():
        tree[name] = {**tree[name], **value} if isinstance(tree.get(name), dict) else value
    return tree


def estimated(gpu_gib: int = 24, **changes: Any) -> Estimate:
    spec = job_from_dict(job(**changes), source="job")
    return estimate_job(workload_of(spec), Machine(spec.world_size, gpu_gib * GIB, 100 * GIB))


def test_a_job_is_estimated_as_it_is_written() -> None:
    train = {"micro_batch_size": 2, "activation_checkpointing": True}
    found = estimated(zero={"stage": 2}, train=train)
    assert found.asked is not None
    assert (found.asked.stage, found.asked.offload) == (2, "none")
    micro = found.work.micro
    assert micro is not None
    assert (micro.batch, micro.sequence, micro.checkpointing) == (2, 64, True)
    assert found.asked.layout.accumulate == "sharded"
    assert found.fits


def test_its_row_is_that_of_the_table() -> None:
    for stage in (0, 1, 2, 3):
        found = estimated(zero={"stage": stage})
        assert found.asked in found.rows


def test_a_job_that_does_not_fit_says_so_though_another_stage_would() -> None:
    model = {"config": config("llama", hidden_size=4096, num_hidden_layers=32, vocab_size=32000)}
    found = estimated(gpu_gib=24, model=model, gpus=8, zero={"stage": 0})
    assert not found.fits
    assert found.choice.row is not None


def test_the_disk_is_where_the_state_is() -> None:
    found = estimated(offload={"optimizer": "disk", "path": "/disk"})
    assert found.asked is not None
    assert found.asked.offload == "disk"
    assert found.asked.memory.disk > 0


def test_adapters_are_what_is_trained() -> None:
    found = estimated(lora={"rank": 4})
    trained = sum(p.numel for p in found.work.model.parameters if p.is_trained)
    assert 0 < trained < found.work.model.count


def test_a_program_of_the_user_is_not_known() -> None:
    spec = job_from_dict(
        {"engine": "script", "script": {"command": ["true"], "directory": "/"}}, source="job"
    )
    with pytest.raises(Unsupported, match="memory of your program is not known"):
        workload_of(spec)


def test_deepspeed_has_the_buckets_of_its_config() -> None:
    zero = {"stage": 2, "reduce_bucket_size": 1000, "allgather_bucket_size": 500}
    deepspeed = {"config": {"zero_optimization": zero}}
    tree = job(engine="deepspeed", deepspeed=deepspeed, zero={"stage": 2})
    work = workload_of(job_from_dict(tree, source="job"))
    assert (work.buckets.reduce, work.buckets.allgather) == (1000, 500)


def test_other_ranks_share_the_batch() -> None:
    spec = job_from_dict(job(), source="job")
    assert with_ranks(spec, 4).world_size == 4
    with pytest.raises(BadRequest, match="cannot be divided evenly among 3 ranks"):
        with_ranks(spec, 3)


@pytest.mark.parametrize("gpu_gib", [192, 50, 35, 22, 18])
def test_the_job_file_of_the_choice_has_its_layout(gpu_gib: int) -> None:
    found = estimate_model(
        of_count("7B"),
        Machine(8, gpu_gib * GIB, 2000 * GIB),
        TrainingSettings(sequence=2048, accumulation=4, checkpointing=True),
        model_table={"path": "/model"},
    )
    row = found.choice.row
    assert row is not None
    way = found.search.best
    assert way is not None
    tree = read_tree(whole_job(found, way, found.configs(way)["job"]).text, source="job")
    tree["data"]["text"] = ["/text"]
    spec = job_from_dict(tree, source="job")
    assert memory_layout_of(spec) == row.layout
    assert spec.train.activation_checkpointing
    assert spec.data.sequence_length == 2048


def test_what_a_layout_offloads() -> None:
    plain = MemoryLayout(stage=3, world_size=2)
    assert offload_of(plain) == "none"
    assert offload_of(MemoryLayout(3, 2, offload_optimizer="cpu")) == "optimizer"
    assert offload_of(MemoryLayout(3, 2, offload_params="cpu")) == "all"
    assert offload_of(MemoryLayout(3, 2, offload_params="cpu", engine="deepspeed")) == "params"


def chosen_configs(gpu_gib: int) -> tuple[int, dict[str, Any]]:
    found = estimate_model(
        of_count("7B"), Machine(8, gpu_gib * GIB, 2000 * GIB), TrainingSettings(sequence=2048)
    )
    way = found.search.best
    assert way is not None
    return way.row.stage, found.configs(way)


@pytest.mark.deepspeed
@pytest.mark.parametrize("gpu_gib", [50, 35, 22, 18])
def test_deepspeed_takes_the_config(gpu_gib: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from deepspeed.runtime.config import DeepSpeedConfig

    monkeypatch.setenv("WORLD_SIZE", "1")
    stage, configs = chosen_configs(gpu_gib)
    read = DeepSpeedConfig(configs["deepspeed"])
    assert read.zero_config.stage == stage
    wanted = configs["deepspeed"]["zero_optimization"]
    assert (read.zero_config.offload_optimizer is not None) == ("offload_optimizer" in wanted)
    assert (read.zero_config.offload_param is not None) == ("offload_param" in wanted)


@pytest.mark.torch
@pytest.mark.parametrize("gpu_gib", [192, 35, 18])
def test_accelerate_takes_the_config(gpu_gib: int, tmp_path: Path) -> None:
    from accelerate.commands.config.config_args import load_config_from_file

    stage, configs = chosen_configs(gpu_gib)
    file = tmp_path / "accelerate.yaml"
    file.write_text(configs["accelerate"])
    read = load_config_from_file(str(file))
    assert read.num_processes == 8
    assert read.deepspeed_config.get("zero_stage", 0) == stage


def ways_of_job(**changes: Any) -> list[dict[str, Any]]:
    """The ways of a large model on two cards, as keys of the job."""
    model = {"config": config("llama", hidden_size=4096, num_hidden_layers=32, vocab_size=32000)}
    tree = job(model=model, **changes)
    spec = job_from_dict(tree, source="job")
    found = estimate_job(workload_of(spec), Machine(2, 14 * GIB, 60 * GIB), job=given_of(spec))
    assert not found.fits
    return [found.keys_of(way) for way in found.ways]


def test_a_run_that_goes_on_keeps_its_optimizer() -> None:
    assert any("train.optimizer" in keys for keys in ways_of_job())
    assert not any("train.optimizer" in keys for keys in ways_of_job(resume_from="/run"))


def test_a_way_is_one_that_the_rules_of_the_job_file_accept() -> None:
    """An asynchronous checkpoint would copy to the host what is kept on disk."""
    assert any(keys.get("offload.optimizer") == "disk" for keys in ways_of_job())
    refused = ways_of_job(checkpoint={"asynchronous": True})
    assert refused
    assert not any(keys.get("offload.optimizer") == "disk" for keys in refused)


def test_the_json_can_be_read_back() -> None:
    tree = json.loads(json.dumps(estimated().to_json()))
    assert tree["schema"] == "zerotools.estimate/1"
    assert tree["choice"] in tree["rows"]
    assert tree["asked"]["peak_bytes"] <= 24 * GIB


def job_attention_kernels(precision: str, attention: str | None = None) -> JobSpec:
    model = {"path": "/model", **({} if attention is None else {"attention": attention})}
    train = {"steps": 1, "batch_size": 8, "precision": precision}
    data = {"text": ["/text"], "sequence_length": 64}
    return job_from_dict(
        {"gpus": 1, "model": model, "data": data, "train": train}, source="job_attention_kernels"
    )


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            job_attention_kernels("fp16"),
            "attention: torch's flash kernel on Fake H100 (compute capability 9.0); torch's "
            "memory-efficient kernel (keys and values repeated for each query head) on V100 "
            "(compute capability 7.0)",
        ),
        (
            job_attention_kernels("fp32", "eager"),
            "attention: eager, so the scores of all pairs of tokens stay in memory",
        ),
        (job_attention_kernels("bf16", "flash_attention_2"), "attention: flash_attention_2"),
    ],
)
def test_a_job_says_its_kernel_on_the_cards_of_this_machine(spec: JobSpec, said: str) -> None:
    cards = FakeProbe([fake_gpu(0), V100, fake_gpu(2)]).read()
    assert kernels_of(spec, cards) == said


def test_no_card_has_a_flash_kernel_for_fp32() -> None:
    said = kernels_of(job_attention_kernels("fp32"), FakeProbe([fake_gpu(0)]).read())
    assert said is not None
    assert "(keys and values repeated for each query head) on Fake H100" in said
    assert kernels_of(job_attention_kernels("fp32"), FakeProbe([]).read()) is None


def test_an_estimate_says_what_it_assumes_unless_it_is_flash() -> None:
    found = {
        precision: attention_assumption(
            MicroBatch(1, 64, precision, attention=attention_on_gpus(precision))
        )
        for precision in ("bf16", "fp16", "fp32")
    }
    assert found["bf16"] is None
    assert "V100, T4" in str(found["fp16"])
    assert "no GPU has a flash kernel for fp32" in str(found["fp32"])
    assert "scores" in str(attention_assumption(MicroBatch(1, 64, attention=EAGER)))
