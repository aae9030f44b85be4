"""Runs with a second kind of parallelism: pipeline stages, tensor parallel, experts."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.moe.layer import MoE
from deepspeed.moe.utils import split_params_into_different_moe_groups_for_optimizer
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from torch import Tensor, nn

from . import truth
from .case import Case, deepspeed_config, with_zero
from .models import Block, gradient, initial

Ranks = Mapping[int, Tensor]

EXPERT = re.compile(r"(?<=deepspeed_experts\.)\d+")


class PipeLayer(Block):
    """A block that passes a row on, with its own loss added."""

    def forward(self, row: Tensor) -> Tensor:  # type: ignore[override]
        return row + super().forward(1, 0).to(row.dtype)


def rows(dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor]]:
    """Of the model's type, as which older versions pass them on."""
    while True:
        yield initial((1, 4), 3).to(dtype), torch.zeros(1)


def pipeline() -> nn.Module:
    """Two stages; a tied block in the first and the last layer."""
    return PipelineModule(
        layers=[
            TiedLayerSpec("embed", PipeLayer, 1, weight=(11, 8)),
            LayerSpec(PipeLayer, 2, weight=(13, 7), bias=(13,)),
            LayerSpec(PipeLayer, 4, weight=(5, 3, 2)),
            LayerSpec(PipeLayer, 5, weight=(17,)),
            TiedLayerSpec("embed", PipeLayer, 1, weight=(11, 8)),
        ],
        num_stages=2,
        partition_method="uniform",
        loss_fn=lambda row, _: row.float().sum(),
    )


EXPERT_RANKS = 2


class Experts(nn.Module):
    """Dense layers, with a mixture of experts after each but the last; `counts` are their experts,
    shared by two expert-parallel ranks."""

    def __init__(self, counts: Sequence[int]) -> None:
        super().__init__()
        self.before = nn.Linear(8, 8)
        for number, count in enumerate(counts):
            expert = nn.Sequential(nn.Linear(8, 6), nn.ReLU(), nn.Linear(6, 8))
            mixture = MoE(8, expert, num_experts=count, ep_size=EXPERT_RANKS, k=1, min_capacity=0)
            self.add_module("mixture" if not number else f"mixture{number}", mixture)
        self.after = nn.Linear(8, 3)

    def forward(self, rows: Tensor) -> Tensor:
        mixed, loss = self.before(rows), 0.0
        for module in self.children():
            if isinstance(module, MoE):
                mixed, auxiliary, _ = module(mixed)
                loss = loss + auxiliary.float()
        return self.after(mixed).float().sum() + loss


EXPERT_COUNTS = {"plain": (4,), "pyramid": (2, 4)}


def expert_rank(case: Case) -> int:
    """Which of the experts this rank has, by the placement that the configuration chooses."""
    if case.config.get("use_data_before_expert_parallelism"):
        return dist.get_rank() * EXPERT_RANKS // dist.get_world_size()
    return dist.get_rank() % EXPERT_RANKS


def experts(case: Case) -> nn.Module:
    """Experts that differ between the expert-parallel ranks."""
    model = Experts(EXPERT_COUNTS[case.model])
    with torch.no_grad():
        for seed, parameter in enumerate(model.parameters()):
            shift = expert_rank(case) if hasattr(parameter, "allreduce") else 0
            parameter.copy_(initial(parameter.shape, seed + 40 * shift))
    return model


def uncut_llama(case: Case) -> nn.Module:
    """With one key-value head, the second tensor rank gets no part of the attention."""
    from .surroundings import tiny_llama  # imports transformers, which no other case needs

    return tiny_llama(tied=False, key_value_heads=1 if case.model == "llama_one_head" else 2)


def model_of(case: Case) -> nn.Module:
    """The model as a case begins, on this rank."""
    if case.harness == "pipeline":
        return pipeline()
    if case.harness == "autoep":
        from .autoep import qwen  # imports transformers

        return qwen()
    return experts(case) if case.harness == "experts" else uncut_llama(case)


def engine_of(case: Case, model: nn.Module, changes: Mapping[str, Any] | None = None) -> Any:
    """The engine of a case, with changes of its ZeRO settings; AutoTP cuts a Llama over two
    ranks."""
    if case.harness == "autoep":
        from .autoep import autoep_engine

        return autoep_engine(case, model, changes or {})
    parameters: list[Any] = [p for p in model.parameters() if p.requires_grad]
    if case.harness == "experts":
        group = {"params": parameters, "name": "all"}
        parameters = split_params_into_different_moe_groups_for_optimizer(group)
    engine, *_ = deepspeed.initialize(
        model=model,
        model_parameters=parameters,
        config=with_zero(deepspeed_config(case), changes or {}),
    )
    return engine


def train(case: Case, engine: Any, step: int) -> float | None:
    """One step; collective. Returns the loss where it does not depend on the number of ranks."""
    if case.harness == "pipeline":
        engine.train_batch(rows(next(engine.module.parameters()).dtype))
        return None
    if case.harness == "autoep":
        from .autoep import train_autoep

        return train_autoep(engine, step)
    if case.harness == "experts":
        batch = gradient((5, 8), step, dist.get_rank())
        loss = engine(batch.to(next(engine.module.parameters()).dtype))
    else:
        from .surroundings import Sentences

        ids = Sentences()[dist.get_rank() // 2]["input_ids"].unsqueeze(0)
        loss = engine(input_ids=ids, labels=ids).loss
    engine.backward(loss)
    engine.step()
    return None


def merge_equal(key: str, values: Ranks) -> Tensor:
    """What several ranks hold must be the same."""
    first, *others = values.values()
    if any(not torch.equal(first, other) for other in others):
        raise AssertionError(f"{key}: the ranks disagree")
    return first


def merge_tensor_parallel(key: str, values: Ranks, uncut: nn.Module) -> Tensor:
    """Joins the shards of tensor ranks 0 and 1, which the data-parallel ranks repeat.

    Where the cut goes is seen from the shape of the uncut model. A shard may be empty, and then
    has no optimizer state.
    """
    whole = uncut.get_parameter(key.partition("|")[0]).shape
    columns = [{r: v for r, v in values.items() if r % 2 == column} for column in range(2)]
    shards = [merge_equal(key, column) for column in columns if column]
    cuts = {
        dimension
        for shard in shards
        for dimension, (part, full) in enumerate(zip(shard.shape, whole, strict=bool(shard.dim())))
        if part != full
    }
    if not cuts:
        return merge_equal(key, values)
    joined = torch.cat(shards, dim=cuts.pop())
    if cuts or joined.shape != whole:
        raise AssertionError(f"{key}: shards give {joined.shape}, the model has {whole}")
    return joined


def global_experts(case: Case, found: dict[str, Tensor]) -> dict[str, Tensor]:
    """Renames this rank's experts from local to global numbers."""
    layers = {key.partition(".")[0] for key in found if EXPERT.search(key)}
    counts = dict(zip(sorted(layers), EXPERT_COUNTS[case.model], strict=True))
    first = {layer: expert_rank(case) * (count // EXPERT_RANKS) for layer, count in counts.items()}

    def renamed(key: str) -> str:
        shift = first.get(key.partition(".")[0], 0)
        return EXPERT.sub(lambda found: str(int(found[0]) + shift), key)

    return {renamed(key): value for key, value in found.items()}


def gather_all(
    found: dict[str, Tensor], merge: Callable[[str, Ranks], Tensor]
) -> dict[str, Tensor]:
    """Joins what every rank found."""
    ranks: list[Mapping[str, Tensor]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(ranks, found)
    return {
        key: merge(key, {r: held[key] for r, held in enumerate(ranks) if key in held}).contiguous()
        for key in sorted({key for held in ranks for key in held})
    }


def gather(case: Case, engine: Any) -> dict[str, Tensor]:
    """What all ranks hold, under the names of the whole model; collective."""
    if case.harness == "autoep":
        from .autoep import gather_autoep

        return gather_autoep(engine)
    found = truth.gather_tensors(engine)
    if case.harness == "experts":
        found = global_experts(case, found)
    if case.harness == "tensor":
        return gather_all(found, partial(merge_tensor_parallel, uncut=uncut_llama(case)))
    return gather_all(found, merge_equal)


def run_parallel(case: Case) -> tuple[Any, dict[str, Tensor]]:
    """Trains and saves; returns the engine and the truth of all ranks."""
    engine = engine_of(case, model_of(case))
    for step in range(case.steps):
        train(case, engine, step)
    engine.save_checkpoint("checkpoint")
    return engine, gather(case, engine)
