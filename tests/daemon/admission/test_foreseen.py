"""What is foreseen of a job's memory, and which jobs can never fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.ops.estimate.tiny_configs import config
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.tables.lora import LoraSpec
from zerotools.jobs.tables.model import ModelSpec
from zerotools.jobs.tables.spec import JobSpec
from zerotoolsd.admission.foreseen import (
    Foreseen,
    expected_text,
    foresee,
    foreseen_of,
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


def foreseen(spec: JobSpec) -> Foreseen:
    found = foresee(spec)
    assert found is not None
    return found


def refused(spec: JobSpec, gpu_gib: int | None = 80, host_gib: int = 512) -> str | None:
    gpu = None if gpu_gib is None else gpu_gib * GIB
    return why_never(spec, foreseen(spec), gpu, host_gib * GIB)


def test_a_job_that_never_fits_is_refused_with_what_would() -> None:
    said = refused(job(), gpu_gib=60)
    assert said is not None
    assert "it is estimated to need 1" in said
    assert "of each GPU, and the largest of this machine has 60.0 GiB" in said
    assert "; zero.stage = 1 would fit, or declare memory.per_gpu" in said


def test_the_setting_that_would_fit_does() -> None:
    assert refused(job(zero={"stage": 1})) is None
    small = refused(job(zero={"stage": 1}), gpu_gib=16)
    assert small is not None
    assert 'zero.stage = 3 and offload.optimizer = "cpu"' in small
    assert "train.activation_checkpointing = true" in small
    train = {"activation_checkpointing": True}
    after = job(zero={"stage": 3}, offload={"optimizer": "cpu"}, train=train)
    assert refused(after, gpu_gib=16) is None


def test_what_is_declared_counts_more() -> None:
    assert refused(job(memory={"per_gpu": "50GiB"}), gpu_gib=60) is None
    offloaded = job(offload={"optimizer": "cpu"}, zero={"stage": 0})
    assert "of host memory" in str(refused(offloaded, host_gib=64))
    declared = job(offload={"optimizer": "cpu"}, zero={"stage": 0}, memory={"host": "60GiB"})
    assert refused(declared, host_gib=64) is None


def test_a_gpu_that_does_not_say_refuses_nothing() -> None:
    assert refused(job(), gpu_gib=None) is None


def test_an_estimate_that_is_a_little_too_high_refuses_nothing() -> None:
    need = foreseen(job()).asked.gpu_tensors
    assert refused(job(), gpu_gib=int(0.8 * need / GIB)) is None
    assert "that is more than there is: zero.stage = 1 would fit" in note_of(
        job(), foreseen(job()), int(0.8 * need), 512 * GIB
    )


def test_what_else_takes_less_is_said(tmp_path: Path) -> None:
    def said(**lora: Any) -> str:
        given = replace(job(), lora=LoraSpec(**lora), model=ModelSpec(path=str(tmp_path)))
        return note_of(given, foreseen(job()), 1, 1)

    assert "or train adapters ([lora])" in said()
    assert 'in 4 bits (lora.frozen_precision = "nf4")' in said(rank=4)
    assert "or take shorter sequences" in said(rank=4, frozen_precision="nf4")


def test_the_note_has_the_numbers() -> None:
    said = note_of(job(zero={"stage": 3}), foreseen(job(zero={"stage": 3})), 80 * GIB, 512 * GIB)
    assert said.startswith("memory: about ")
    assert "GiB of 80.0 GiB on each GPU, and of the host's what its processes take" in said
    cpu = job(gpus=None, device="cpu", ranks=2)
    assert "GPU" not in note_of(cpu, foreseen(cpu), None, 512 * GIB)


def test_a_job_on_cpus_takes_the_hosts_memory() -> None:
    cpu = job(gpus=None, device="cpu", ranks=2, zero={"stage": 3})
    assert "of host memory, and this machine has 24.0 GiB" in str(refused(cpu, host_gib=24))
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
    assert foresee(replace(job(), model=ModelSpec(config=model))) is None


def test_it_travels_as_json() -> None:
    found = foreseen(job())
    assert foreseen_of(json.loads(json.dumps(found.to_json()))) == found
    assert foreseen_of(None) is None


def test_the_scheduler_is_told_what_is_asked_and_what_would_take_less_of_the_host() -> None:
    spec = job(zero={"stage": 1}, offload={"optimizer": "cpu"})
    tree = json.loads(str(expected_text(spec, foreseen(spec))))
    assert tree["host"] == foreseen(spec).asked.host
    assert tree["gpu"] == foreseen(spec).asked.gpu_tensors
    assert 'offload.optimizer = "none"' in tree["less_host"]
    assert expected_text(spec, None) is None
