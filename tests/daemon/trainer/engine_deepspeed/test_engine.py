"""What a step of engine `deepspeed` asks of the GPU beside what DeepSpeed does."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from harness.launching import TINY_LLAMA
from tests.daemon.trainer.torch_releases import since_torch

pytestmark = pytest.mark.torch


def engine_of(device: str, norm: Any, *, fp16: bool = False) -> Any:
    """An engine with a stand-in for DeepSpeed's, which updates nothing and has this norm."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from zerotools.jobs.jobfile_tables.spec import JobSpec
    from zerotools.jobs.jobfile_tables.train import TrainSpec
    from zerotoolsd.trainer.engine_deepspeed.engine import DeepSpeedEngine
    from zerotoolsd.trainer.rank.process_group import WorldGroup
    from zerotoolsd.trainer.rank.rank_settings import Rank

    config = {key: value for key, value in TINY_LLAMA.items() if key != "model_type"}
    place = torch.device(device, *([0] if device == "cuda" else []))
    model = LlamaForCausalLM(LlamaConfig(**config, attn_implementation="eager"))
    for module in model.modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            setattr(module, name, torch.nn.Parameter(parameter.detach().to(place)))
        for name, buffer in list(module.named_buffers(recurse=False)):
            module._buffers[name] = buffer.to(place)

    class Theirs:
        skipped_steps, lr_scheduler, module = 0, None, model
        optimizer = SimpleNamespace(param_groups=[{}], cur_scale=8.0)

        def __call__(self, **arguments: Any) -> Any:
            return model(**arguments)

        def backward(self, loss: Any) -> None:
            loss.backward()

        def step(self) -> None:
            self.skipped_steps += fp16

        def train_micro_batch_size_per_gpu(self) -> int:
            return 1

        def fp16_enabled(self) -> bool:
            return fp16

        def bfloat16_enabled(self) -> bool:
            return True

        def get_global_grad_norm(self) -> Any:
            return norm

    group = WorldGroup(Rank(0, 0, 1), place, control=None)
    spec = JobSpec(train=TrainSpec(steps=4, batch_size=2))
    stage: Any = {"zero_optimization": {"stage": 2}}
    files: Any = None
    return DeepSpeedEngine(spec, stage, group, Theirs(), files, ())


def step(engine: Any) -> Any:
    from zerotoolsd.trainer.data.example_pools import Example, RankBatch

    rows = [[(3 * at + 5 * row) % 251 for at in range(17)] for row in range(2)]
    batch = RankBatch([Example(row[:-1], row[1:]) for row in rows], 32, 32)
    return engine.step(batch, 0, lambda: True)


@since_torch("2.13", "the simulated GPU needs it")
def test_a_step_waits_once_for_the_gpu_in_all_its_micro_batches() -> None:
    import torch

    from tests.daemon.trainer.simulated_gpu import simulated_gpu

    with simulated_gpu() as waits:
        engine = engine_of("cuda", torch.full((), 1.5, device="cuda:0"))
        waits.clear()
        found = step(engine)
        assert waits == {"tolist": 1}
    assert (found.grad_norm, found.stop, found.skipped) == (1.5, True, 0)
    assert found.loss == pytest.approx(math.log(256), rel=0.05)


@pytest.mark.parametrize(("norm", "expected"), [(2.5, 2.5), (None, 0.0)])
def test_a_norm_may_be_a_number_or_missing(norm: float | None, expected: float) -> None:
    assert step(engine_of("cpu", norm)).grad_norm == expected


def test_a_norm_that_is_not_finite_ends_the_run_unless_the_step_was_skipped() -> None:
    from zerotoolsd.trainer.rank.rank_errors import Diverged

    with pytest.raises(Diverged, match="the gradient norm of step 1 is nan"):
        step(engine_of("cpu", -1.0))
    found = step(engine_of("cpu", -1.0, fp16=True))
    assert (found.is_skipped, found.loss_scale) == (True, 8.0)
    assert math.isnan(found.grad_norm)
