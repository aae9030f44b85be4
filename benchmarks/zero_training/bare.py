"""The loop that one would write by hand on the same engine, to be timed beside ours.

Data made up beforehand, no checkpoints, nothing told: forward, backward, clip, step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional
from transformers import AutoModelForCausalLM

from zerotools.jobs.jobfile_tables.spec import JobSpec
from zerotoolsd.trainer.model.meta_model import checkpoint_activations, read_config


def fsdp2_seconds(spec: JobSpec, steps: int) -> list[float]:
    """Seconds of each of `steps` steps of FSDP2 as its tutorial has it, at the job's stage: 2 or 3,
    or 0 by a mesh that replicates."""
    model = _model(spec)
    mesh = init_device_mesh(spec.device, (spec.world_size,))
    if spec.zero.stage == 0:
        names = ("replicate", "shard")
        mesh = init_device_mesh(spec.device, (spec.world_size, 1), mesh_dim_names=names)
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    again = spec.zero.stage != 2
    for layer in model.model.layers:
        fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=again)
    fully_shard(model, mesh=mesh, mp_policy=policy, reshard_after_forward=again)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    seconds = []
    for tokens in _tokens(spec, model, steps):
        began = time.perf_counter()
        _loss(model, tokens).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        _settle(spec)
        seconds.append(time.perf_counter() - began)
    return seconds


def plain_seconds(spec: JobSpec, steps: int, look: Callable[[], float]) -> list[float]:
    """Seconds by `look` of each of `steps` steps of one rank by torch alone, in fp32."""
    model = _model(spec)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    seconds = []
    for tokens in _tokens(spec, model, steps):
        began = look()
        loss = _loss(model, tokens)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        loss.item()  # as one logs it
        seconds.append(look() - began)
    return seconds


def deepspeed_seconds(spec: JobSpec, config: dict[str, Any], steps: int) -> list[float]:
    """The same of DeepSpeed under its own JSON."""
    import deepspeed

    model = _model(spec)
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=model.parameters(), config=config
    )
    seconds = []
    for tokens in _tokens(spec, model, steps):
        began = time.perf_counter()
        engine.backward(_loss(engine, tokens))
        engine.step()
        _settle(spec)
        seconds.append(time.perf_counter() - began)
    engine.destroy()
    return seconds


def _model(spec: JobSpec) -> Any:
    torch.manual_seed(spec.seed)
    with torch.device(spec.device):  # where a billion random numbers take no time
        model = AutoModelForCausalLM.from_config(read_config(spec.model))
    if spec.train.activation_checkpointing:
        checkpoint_activations(model)
    return model.train()


def _tokens(spec: JobSpec, model: Any, steps: int) -> torch.Tensor:
    shape = (steps, spec.train.batch_size // spec.world_size, spec.data.sequence_length + 1)
    return torch.randint(model.config.vocab_size, shape, device=spec.device)


def _loss(model: Any, tokens: torch.Tensor) -> torch.Tensor:
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    return functional.cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())


def _settle(spec: JobSpec) -> None:
    if spec.device == "cuda":
        torch.cuda.synchronize()
