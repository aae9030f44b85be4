"""Which weights Muon updates: matrices that are neither an embedding nor the head."""

from __future__ import annotations

from typing import Any

from torch import nn

from zerotools.core.errors import BadRequest
from zerotools.jobs.tables.train import TrainSpec


def tables_of(model: Any) -> frozenset[str]:
    """Names of the embeddings and of the head; a tied weight has its first name."""
    modules = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    modules += [] if head is None else [head]
    weights = {id(weight) for module in modules for weight in module.parameters(recurse=False)}
    return frozenset(name for name, p in model.named_parameters() if id(p) in weights)


def matrices_of(model: Any) -> frozenset[str]:
    """Names of the weights of `model` that Muon updates."""
    tables = tables_of(model)
    return frozenset(
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter.dim() == 2 and name not in tables
    )


def check_matrices(train: TrainSpec, model: Any) -> None:
    """
    Raises:
        BadRequest: Muon is asked for, and would update nothing.
    """
    if train.optimizer == "muon" and not matrices_of(model):
        raise BadRequest(
            'train.optimizer = "muon": the model trains no matrix, embeddings and the head aside, '
            'for Muon to update; set "adamw"'
        )
