"""Decides which parameters have weight decay, and which parameters Muon updates.

There are two rules for weight decay. With `"names"` (as in `Trainer.get_decay_parameter_names` of
transformers 5.23), all parameters have weight decay, except the parameters of torch's LayerNorms
and parameters with the name of a bias or a norm. With `"shapes"`, the rule of earlier versions, all
parameters with two or more dimensions have weight decay. A continued run keeps the groups of its
checkpoint. Muon updates matrices other than embeddings and the head.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from zerotools.core.errors import BadRequest
from zerotools.jobs.jobfile_tables.train import TrainSpec
from zerotools.runs.training_record import JobRecord, OptimizerGroup

_UNDECAYED = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")


def decayed_names(model: nn.Module, rule: str, record: JobRecord | None = None) -> frozenset[str]:
    """Return the names of the trainable parameters of `model` with weight decay.

    If the record of a checkpoint is given and has these names, they are returned. Otherwise `rule`
    decides, a value of the job key `train.decay_by`.
    """
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    recorded = None if record is None else _recorded(record.optimizer.groups)
    if recorded is not None:
        return recorded & trained.keys()
    if rule == "shapes":
        return frozenset(name for name, p in trained.items() if p.dim() >= 2)
    return frozenset(_by_names(model)) & trained.keys()


def _recorded(groups: Sequence[OptimizerGroup]) -> frozenset[str] | None:
    """Return the names of the parameters with weight decay, according to the groups of a record.

    If the weight decay of all groups is 0, and one optimizer has several groups, the first group
    has these parameters. Returns None if the record does not name parameters. Also returns None if
    no group has weight decay, and there is only one group or some groups are Muon's.
    """
    if not groups or not all(group.params for group in groups):
        return None
    decaying = [group for group in groups if group.weight_decay]
    is_mixed = len({group.momentum is None for group in groups}) > 1  # Muon's and AdamW's
    if not decaying and (len(groups) == 1 or is_mixed):
        return None
    return frozenset(name for group in decaying or groups[:1] for name in group.params)


def _by_names(module: nn.Module) -> Iterator[str]:
    """Yield the names of the parameters of `module` that have weight decay according to the rule
    `"names"`.

    The name of a parameter is checked relative to each module that contains it.
    """
    for prefix, child in module.named_children():
        if not isinstance(child, nn.LayerNorm):
            found = (f"{prefix}.{name}" for name in _by_names(child))
            yield from (name for name in found if not _UNDECAYED.search(name.lower()))
    yield from (name for name in module._parameters if not _UNDECAYED.search(name.lower()))


def embedding_names(model: Any) -> frozenset[str]:
    """Return the parameter names of the embeddings and the head.

    A tied weight has its first name.
    """
    modules = [module for module in model.modules() if isinstance(module, nn.Embedding)]
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    modules += [] if head is None else [head]
    weights = {id(weight) for module in modules for weight in module.parameters(recurse=False)}
    return frozenset(name for name, p in model.named_parameters() if id(p) in weights)


def muon_names(model: Any) -> frozenset[str]:
    """Return the names of the weights of `model` that Muon updates."""
    tables = embedding_names(model)
    return frozenset(
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter.dim() == 2 and name not in tables
    )


def check_matrices(train: TrainSpec, model: Any) -> None:
    """Check that Muon has weights to update, if the job uses it.

    Raises:
        BadRequest: Muon would update nothing.
    """
    if train.optimizer == "muon" and not muon_names(model):
        raise BadRequest(
            'train.optimizer = "muon": Muon updates matrices other than embeddings and the '
            'head, but the model trains no such matrix; set train.optimizer = "adamw"'
        )
