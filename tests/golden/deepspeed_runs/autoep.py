"""Runs whose experts DeepSpeed's AutoEP shares among ranks: a tiny Qwen3-MoE of transformers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.module_inject.auto_ep import AutoEP
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM

from . import truth
from .case import Case, deepspeed_config, with_zero
from .models import initial

VOCABULARY = 29
_EXPERTS = (".experts.w1", ".experts.w2", ".experts.w3")


def qwen() -> nn.Module:
    """Two layers of four experts; initial values by a formula."""
    config = AutoConfig.for_model(
        "qwen3_moe",
        architectures=["Qwen3MoeForCausalLM"],
        hidden_size=8,
        intermediate_size=12,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=4,
        vocab_size=VOCABULARY,
        max_position_embeddings=32,
        tie_word_embeddings=False,
        moe_intermediate_size=6,
        num_experts=4,
        num_experts_per_tok=2,
        norm_topk_prob=True,
        mlp_only_layers=[],
    )
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for seed, parameter in enumerate(model.parameters()):
            parameter.copy_(initial(parameter.shape, seed))
    return model


def _leave_recorders(*args: Any, **kwargs: Any) -> None:
    """DeepSpeed 0.19.8 looks into a registry of transformers that 5.23 has not any more, so that
    callers can be given router logits; here none are asked for."""


def autoep_engine(case: Case, model: nn.Module, changes: Mapping[str, Any]) -> Any:
    """The engine of a case, with changes of its ZeRO settings; `autoep_size` and `load_universal`
    are settings of other tables."""
    AutoEP._retarget_transformers_output_recorders = _leave_recorders
    zero = dict(changes)
    ranks, is_universal = zero.pop("autoep_size", None), zero.pop("load_universal", False)
    config = with_zero(deepspeed_config(case), zero)
    if ranks is not None:
        config |= {"expert_parallel": {**config["expert_parallel"], "autoep_size": ranks}}
    if is_universal:
        config |= {"checkpoint": {"load_universal": True}}
    engine, *_ = deepspeed.initialize(
        model=model, model_parameters=list(model.parameters()), config=config
    )
    return engine


def train_autoep(engine: Any, step: int) -> float:
    """One step on the same tokens on all ranks, so that runs on any number of ranks have the same
    loss, which is returned; collective."""
    ids = _tokens(0, step)
    loss = engine(input_ids=ids, labels=ids).loss
    engine.backward(loss)
    engine.step()
    return float(loss)


def run_autoep(case: Case) -> tuple[Any, dict[str, Tensor], dict[str, Any]]:
    """Trains and saves; returns the engine, the truth of all ranks, and facts: tied names, and in
    fp32 the loss of `tokens` after the last step."""
    model = qwen()
    if dist.get_rank() == 0:
        Path("config.json").write_text(model.config.to_json_string())
    engine = autoep_engine(case, model, {})
    for step in range(case.steps):
        ids = _tokens(dist.get_rank(), step)
        engine.backward(engine(input_ids=ids, labels=ids).loss)
        engine.step()
    engine.save_checkpoint("checkpoint")
    facts: dict[str, Any] = {"aliases": truth.aliases(engine.module)}
    if case.precision == "fp32":
        ids = _tokens(0, case.steps)
        with torch.no_grad():
            loss = engine(input_ids=ids, labels=ids).loss.item()
        facts |= {"tokens": ids.tolist(), "loss": loss}
    return engine, gather_autoep(engine), facts


def _tokens(rank: int, step: int) -> Tensor:
    return torch.tensor([[(3 * i + 5 * rank + step) % VOCABULARY for i in range(8)]])


def gather_autoep(engine: Any) -> dict[str, Tensor]:
    """What all ranks hold: those that have the same experts agree, and so do all in everything
    else; collective."""
    found = truth.gather_tensors(engine)
    expert_ranks = engine._config.expert_parallel_config.autoep_size
    every: list[Mapping[str, Tensor]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(every, found)
    whole = {}
    for key in sorted({key for held in every for key in held}):
        name, _, role = key.partition("|")
        is_block = name.endswith(_EXPERTS) and role != "step"
        parts = []
        for first in range(expert_ranks if is_block else 1):
            held = every[first :: expert_ranks if is_block else 1]
            same = [each[key] for each in held if key in each]
            if any(not torch.equal(same[0], other) for other in same):
                raise AssertionError(f"{key}: the ranks disagree")
            parts.append(same[0])
        whole[key] = (torch.cat(parts) if is_block else parts[0]).contiguous()
    return whole
