"""The kernel of attention that a job takes on each kind of GPU, in words."""

from __future__ import annotations

from dataclasses import replace

import pytest

from zerotools.jobs.estimating.attention_kernels import assumed, kernels_of
from zerotools.jobs.jobfile.parse import job_from_dict
from zerotools.jobs.tables.spec import JobSpec
from zerotools.ops.estimate.activation_memory import EAGER, MicroBatch, on_gpus
from zerotools.sensors.fake import FakeProbe, fake_gpu

V100 = replace(fake_gpu(1, compute_capability=(7, 0)), name="V100")


def job(precision: str, attention: str | None = None) -> JobSpec:
    model = {"path": "/model", **({} if attention is None else {"attention": attention})}
    train = {"steps": 1, "batch_size": 8, "precision": precision}
    data = {"text": ["/text"], "sequence_length": 64}
    return job_from_dict({"gpus": 1, "model": model, "data": data, "train": train}, source="job")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (
            job("fp16"),
            "attention: torch's flash kernel on Fake H100 (compute capability 9.0); torch's "
            "memory-efficient kernel with repeated keys on V100 (compute capability 7.0)",
        ),
        (job("fp32", "eager"), "attention: eager, so the scores of all pairs of tokens are kept"),
        (job("bf16", "flash_attention_2"), "attention: flash_attention_2"),
    ],
)
def test_a_job_says_its_kernel_on_the_cards_of_this_machine(spec: JobSpec, said: str) -> None:
    cards = FakeProbe([fake_gpu(0), V100, fake_gpu(2)]).read()
    assert kernels_of(spec, cards) == said


def test_no_card_has_a_flash_kernel_for_fp32() -> None:
    said = kernels_of(job("fp32"), FakeProbe([fake_gpu(0)]).read())
    assert said is not None
    assert "memory-efficient kernel with repeated keys on Fake H100" in said
    assert kernels_of(job("fp32"), FakeProbe([]).read()) is None


def test_an_estimate_says_what_it_assumes_unless_it_is_flash() -> None:
    found = {
        precision: assumed(MicroBatch(1, 64, precision, attention=on_gpus(precision)))
        for precision in ("bf16", "fp16", "fp32")
    }
    assert found["bf16"] is None
    assert "V100, T4" in str(found["fp16"])
    assert "no GPU has a flash kernel for fp32" in str(found["fp32"])
    assert "scores" in str(assumed(MicroBatch(1, 64, attention=EAGER)))
