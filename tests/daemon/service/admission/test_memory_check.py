"""What is foreseen of a job's memory, and which jobs can never fit."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.ops.estimate.tiny_configs import config
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.jobfile_tables.model import ModelSpec
from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotools.jobs.memory_estimates.tokenizer_processes import (
    PROCESS_BYTES,
    count_for,
    memory_limit_of,
)
from zerotoolsd.service.admission.memory_check import (
    JobMemoryEstimate,
    MachineMemory,
    estimate_from_json,
    estimate_job_memory,
    expected_text,
    note_of,
    why_never,
)

GIB = 1 << 30
SEVEN_B = config(
    "llama",
    hidden_size=4096,
    intermediate_size=11008,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=32,
    vocab_size=32000,
    max_position_embeddings=4096,
)


def job(model: dict[str, Any] | None = None, **changes: Any) -> JobSpec:
    tree: dict[str, Any] = {
        "gpus": 8,
        "model": {"config": model or SEVEN_B},
        "data": {"text": ["/text"], "sequence_length": 2048},
        "train": {"steps": 1, "batch_size": 8, "precision": "bf16"},
        "zero": {"stage": 0},
    }
    for name, value in changes.items():
        if value is None:
            del tree[name]
        else:
            tree[name] = {**tree[name], **value} if isinstance(tree.get(name), dict) else value
    return job_from_dict(tree, source="job")


def memory_of(gpu_gib: float | None, host_gib: float = 512) -> MachineMemory:
    return MachineMemory(None if gpu_gib is None else int(gpu_gib * GIB), int(host_gib * GIB))


def foreseen(spec: JobSpec, memory: MachineMemory | None = None) -> JobMemoryEstimate:
    found = estimate_job_memory(spec, memory or memory_of(80))
    assert found is not None
    return found


def refused(spec: JobSpec, gpu_gib: int | None = 80, host_gib: int = 512) -> str | None:
    memory = memory_of(gpu_gib, host_gib)
    return why_never(spec, foreseen(spec, memory), memory)


def noted(spec: JobSpec, memory: MachineMemory) -> str:
    return note_of(spec, foreseen(spec, memory), memory)


def test_a_job_that_never_fits_is_refused_with_what_would() -> None:
    said = refused(job(), gpu_gib=60)
    assert said is not None
    assert "it is estimated to need 1" in said
    assert "of each GPU, but the GPUs for it have 60.0 GiB" in said
    assert "; zero.stage = 1 would fit; or, if the estimate is too high, set memory.per_gpu" in said


def test_what_tokenises_the_data_counts_where_the_training_takes_less_of_the_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8))
    path = tmp_path / "a.txt"
    with path.open("wb") as file:
        file.truncate(1 << 30)
    data = {"text": [str(path)], "tokenizer": str(tmp_path), "sequence_length": 2048}
    alone = foreseen(job(zero={"stage": 3}))
    assert alone.asked.host == 0
    plain = foreseen(job(zero={"stage": 3}, data=data))
    assert plain.asked.host == count_for(1 << 30, memory_limit_of(job())) * PROCESS_BYTES > 0
    assert plain.less_host is None
    offloaded: dict[str, Any] = {"zero": {"stage": 3}, "offload": {"optimizer": "cpu"}}
    without = foreseen(job(**offloaded))
    assert without.asked.host > plain.asked.host
    assert foreseen(job(**offloaded, data=data)) == without


def test_the_setting_that_would_fit_does() -> None:
    assert refused(job(zero={"stage": 1})) is None
    small = refused(job(zero={"stage": 1}), gpu_gib=16)
    assert small is not None
    keys = 'train.activation_checkpointing = true, zero.stage = 3, offload.optimizer = "cpu"'
    assert keys in small
    assert (
        '; or train.activation_checkpointing = true, zero.stage = 3, offload.optimizer = "disk"'
        in small
    )
    train = {"activation_checkpointing": True}
    after = job(zero={"stage": 3}, offload={"optimizer": "cpu"}, train=train)
    assert refused(after, gpu_gib=16) is None


def test_where_nothing_fits_the_nearest_is_said() -> None:
    said = str(refused(job(gpus=1, train={"batch_size": 1}), gpu_gib=6, host_gib=16))
    assert "no offload, checkpointing or smaller batch makes it fit: the closest setting, " in said
    assert "of the host's 16.0 GiB" in said or "of a GPU's 6.0 GiB" in said


def test_adapters_are_named_where_the_model_has_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SEVEN_B))
    whole = job(gpus=1, train={"batch_size": 1})
    spec = replace(whole, model=ModelSpec(path=str(tmp_path)))
    said = str(refused(spec, gpu_gib=24, host_gib=8))
    assert "train.activation_checkpointing = true, lora.rank = 16" in said
    assert 'lora.rank = 16, lora.frozen_precision = "nf4" would fit' in said


def test_what_is_declared_counts_more() -> None:
    assert refused(job(memory={"per_gpu": "50GiB"}), gpu_gib=60) is None
    offloaded = job(offload={"optimizer": "cpu"}, zero={"stage": 0})
    assert "of host memory" in str(refused(offloaded, host_gib=64))
    declared = job(offload={"optimizer": "cpu"}, zero={"stage": 0}, memory={"host": "60GiB"})
    assert refused(declared, host_gib=64) is None


def test_a_gpu_that_does_not_say_refuses_nothing() -> None:
    assert refused(job(), gpu_gib=None) is None


def test_an_estimate_that_is_a_little_too_high_refuses_nothing() -> None:
    need = foreseen(job()).asked.gpu_measured
    assert refused(job(), gpu_gib=int(0.8 * need / GIB)) is None
    memory = MachineMemory(int(0.8 * need), 512 * GIB)
    assert "this machine has less: zero.stage = 1 would fit" in noted(job(), memory)


def test_the_note_has_the_numbers() -> None:
    said = noted(job(zero={"stage": 3}), memory_of(80))
    assert said.startswith("memory: about ")
    assert "GiB of 80.0 GiB on each GPU, and the memory that its processes take" in said
    cpu = job(gpus=None, device="cpu", ranks=2)
    assert "GPU" not in noted(cpu, memory_of(None))


def test_a_job_on_cpus_takes_the_hosts_memory() -> None:
    cpu = job(gpus=None, device="cpu", ranks=2, zero={"stage": 3})
    assert "of host memory, but this machine has 24.0 GiB" in str(refused(cpu, host_gib=24))
    tiny = job(config("llama"), gpus=None, device="cpu", ranks=8)
    assert refused(tiny, host_gib=1) is None


def test_an_elastic_job_is_looked_at_with_the_most_ranks() -> None:
    elastic = job(gpus={"min": 1, "max": 8}, zero={"stage": 3})
    assert foreseen(elastic) == foreseen(job(zero={"stage": 3}))


@pytest.mark.parametrize(
    "model",
    [{"model_type": "mamba", "hidden_size": 32}, {}, {"model_type": 3}],
    ids=str,
)
def test_of_what_is_not_known_nothing_is_foreseen(model: dict[str, Any]) -> None:
    assert estimate_job_memory(replace(job(), model=ModelSpec(config=model)), memory_of(80)) is None


def test_it_travels_as_json() -> None:
    found = foreseen(job(), memory_of(60))
    assert found.ways
    assert estimate_from_json(json.loads(json.dumps(found.to_json()))) == found
    assert estimate_from_json(None) is None


def test_the_scheduler_is_told_what_is_asked_and_what_would_take_less_of_the_host() -> None:
    spec = job(zero={"stage": 1}, offload={"optimizer": "cpu"})
    tree = json.loads(str(expected_text(foreseen(spec))))
    assert tree["host"] == foreseen(spec).asked.host
    assert tree["gpu"] == foreseen(spec).asked.gpu_measured
    assert 'offload.optimizer = "none"' in tree["less_host"]
    assert expected_text(None) is None
