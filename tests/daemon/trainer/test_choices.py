"""Optimizers, schedules and activation checkpointing, on real ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.launching import TINY_GPT2, TINY_LLAMA
from tests.daemon.trainer.meshes import check_memory
from tests.daemon.trainer.several import Runs, run_all
from tests.matrices import FULL
from zerotools import formats
from zerotools.core.errors import Unsupported
from zerotools.runs import find_job_checkpoints

pytestmark = pytest.mark.torch
TOLERANCE = 2e-6
AGAIN = (1, 3) if FULL else (3,)


def sgd(stage: int, **changes: Any) -> dict[str, Any]:
    rates = {"schedule": "wsd", "decay_steps": 2, "learning_rate": 0.5}
    train = {"steps": 4, "optimizer": "sgd", "momentum": 0.8, **rates}
    return {"train": train, "zero": {"stage": stage}, **changes}


def gpt2(stage: int, **train: Any) -> dict[str, Any]:
    """It drops out, which computing again must repeat."""
    changes = {"steps": 2, "precision": "bf16", **train}
    return {"model": {"config": TINY_GPT2}, "train": changes, "zero": {"stage": stage}}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, text: Path) -> Runs:
    directory = tmp_path_factory.mktemp("choices")
    source = directory / "out" / "sgd-1" / "out" / find_job_checkpoints.directory_name(2)
    jobs = {
        "sgd-0": sgd(0),
        "sgd-1": sgd(1, checkpoint={"every": 2}),
        "resumed-1": sgd(1, resume_from=str(source)),
    }
    if FULL:  # as AdamW's state moves in `test_stages`
        jobs["moved-3"] = sgd(3, resume_from=str(source))
    for stage in AGAIN:
        jobs[f"kept-{stage}"] = gpt2(stage)
        jobs[f"again-{stage}"] = gpt2(stage, activation_checkpointing=True)
    return run_all(directory, text, 2, jobs, ends=False)


def test_sgd_trains_alike_at_every_stage_and_resumes(runs: Runs) -> None:
    losses = runs.losses("sgd-0")
    assert losses[3] < losses[0] - 0.05
    assert runs.losses("sgd-1") == pytest.approx(losses, rel=TOLERANCE)
    assert runs.losses("resumed-1") == runs.losses("sgd-1")[2:]
    assert runs.ended("resumed-1") == runs.ended("sgd-1")
    if FULL:
        assert runs.losses("moved-3") == pytest.approx(losses[2:], rel=TOLERANCE)
    assert runs.of("sgd-0", "learning_rate") == [0.5, 0.5, 0.5, 0.25]  # wsd of transformers


def test_each_rank_holds_what_was_predicted(runs: Runs) -> None:
    for name in runs.report:
        check_memory(runs, name, near=0.0)


def test_the_tools_know_the_momentum(runs: Runs) -> None:
    checkpoint = formats.read(runs.checkpoint("sgd-1", 2))
    assert {key.role for key in checkpoint.tensors} == {"param", "momentum_buffer"}
    state = formats.training_of(checkpoint)
    assert state.optimizer == "SGD"
    assert state.groups[0].options == {"lr": 0.5, "weight_decay": 0.1, "momentum": 0.8}
    assert state.client["schedule"]["decay_steps"] == 2


@pytest.mark.parametrize("stage", AGAIN)
def test_activations_that_are_computed_again_change_nothing(runs: Runs, stage: int) -> None:
    assert runs.losses(f"again-{stage}") == runs.losses(f"kept-{stage}")
    assert runs.ended(f"again-{stage}") == runs.ended(f"kept-{stage}")


def test_activations_are_not_kept() -> None:
    import torch
    from transformers import LlamaConfig

    from zerotoolsd.trainer.model.meta_model import checkpoint_activations, make_meta_model

    def kept(model: Any) -> int:
        """Bytes that the forward pass keeps for the backward pass."""
        total = 0

        def keep(tensor: torch.Tensor) -> torch.Tensor:
            nonlocal total
            total += tensor.nbytes
            return tensor

        ids = torch.zeros((2, 32), dtype=torch.int64)
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model(input_ids=ids, use_cache=False)
        return total

    model = make_meta_model(LlamaConfig(**TINY_LLAMA)).model.to_empty(device="cpu").train()
    before = kept(model)
    checkpoint_activations(model)
    assert kept(model) < before / 3
    model.supports_gradient_checkpointing = False
    with pytest.raises(Unsupported, match="not support it for LlamaForCausalLM"):
        checkpoint_activations(model)
