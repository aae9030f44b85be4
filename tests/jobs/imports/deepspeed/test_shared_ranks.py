"""Ranks that DeepSpeed has compute the same sequences."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.jobs.imports.jobs import JOB, a_job, ds_text, outcomes, said

A_JOB = a_job(JOB + "batch_size = 16\nmicro_batch_size = 4\nlearning_rate = 1e-4\n")


def test_ranks_that_share_sequences_have_one_micro_batch() -> None:
    tree = {"sequence_parallel_size": 2, "train_micro_batch_size_per_gpu": 3}
    free = a_job(JOB.replace("gpus = 2", "gpus = 4"))
    imported = ds_text(json.dumps({**tree, "gradient_accumulation_steps": 5}), free)
    assert imported.problem is None
    assert imported.tree["zero"]["sequence_ranks"] == 2
    assert imported.tree["train"]["batch_size"] == 3 * 5 * 2
    of_ranks = {"train_batch_size": 30, "gradient_accumulation_steps": 5, **tree}
    inferred = ds_text(json.dumps(of_ranks), a_job(JOB.replace("gpus = 2\n", "")))
    assert inferred.tree["gpus"] == 4
    assert "= 0: must be a whole number, 1 or more" in said(
        ds_text('{"sequence_parallel_size": 0}', A_JOB)
    )


def test_tensor_ranks_share_a_micro_batch() -> None:
    tree = {"tensor_parallel": {"autotp_size": 2}, "train_micro_batch_size_per_gpu": 3}
    free = a_job(JOB.replace("gpus = 2", "gpus = 4"))
    config = {**tree, "gradient_accumulation_steps": 5, "zero_optimization": {"stage": 2}}
    imported = ds_text(json.dumps(config), free)
    assert imported.problem is None
    assert imported.tree["zero"] == {"stage": 2, "tensor_ranks": 2}
    assert imported.tree["train"]["batch_size"] == 3 * 5 * 2


def test_how_layers_are_cut_is_the_models_plan() -> None:
    section = {"autotp_size": 2, "tp": {"tp_size": 2}, "preset_model": "llama"}
    imported = ds_text(json.dumps({"tensor_parallel": section}), A_JOB)
    found = outcomes(imported)
    assert found["tensor_parallel.tp.tp_size"] == "mapped"
    assert found["tensor_parallel.preset_model"] == "ignored"
    assert imported.tree["zero"]["tensor_ranks"] == 2


@pytest.mark.parametrize("size", [0, 1, None])
def test_it_is_off_without_a_size(size: int | None) -> None:
    section = {"tp_overlap_comm": True, "kernel_inject": True, "tp": {"tp_size": 4}}
    if size is not None:
        section["autotp_size"] = size
    imported = ds_text(json.dumps({"tensor_parallel": section}), A_JOB)
    assert imported.problem is None
    assert "tensor_ranks" not in imported.tree["zero"]
    assert set(outcomes(imported).values()) <= {"ignored", "default"}


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"autotp_size": -1}, "autotp_size = -1: must be a whole number"),
        ({"autotp_size": "auto"}, 'autotp_size = "auto": must be a whole number'),
        ({"autotp_size": 2, "tp": {"tp_size": 4}}, "says 2; make them agree"),
        ({"autotp_size": 2, "kernel_inject": True}, "replaces layers by kernels"),
        ({"autotp_size": 3}, "tensor_parallel.autotp_size) = 3: must divide the 2 ranks"),
        (2, "tensor_parallel = 2: must be an object"),
    ],
)
def test_sizes_that_cannot_be(section: Any, told: str) -> None:
    assert told in said(ds_text(json.dumps({"tensor_parallel": section}), A_JOB))


def test_the_engine_deepspeed_is_passed_it() -> None:
    job = a_job('engine = "deepspeed"\n' + JOB + "batch_size = 8\n")
    config = {"tensor_parallel": {"autotp_size": 2}, "wandb": {"enabled": True}}
    imported = ds_text(json.dumps(config), job)
    found = outcomes(imported)
    assert found["tensor_parallel.autotp_size"] == found["wandb.enabled"] == "passed through"
    assert "metrics" not in imported.tree
    assert imported.deepspeed is not None
    assert imported.deepspeed.items() >= config.items()
