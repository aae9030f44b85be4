"""Which parameters the weight decay is for.

By `"names"` it is transformers' rule, `Trainer.get_decay_parameter_names` of 5.23: all but the
parameters of torch's own LayerNorms, and those whose name says that they are a bias or of a norm.
By `"shapes"` it is the rule of earlier versions: all of two or more dimensions. A run that
goes on keeps the groups that its checkpoint's record has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from torch import nn

from zerotools.runs.record import JobRecord, OptimizerGroup

_UNDECAYED = re.compile(r"bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)")


def decayed_names(model: nn.Module, rule: str, record: JobRecord | None = None) -> frozenset[str]:
    """Names of the trainable parameters of `model` that decay: those of the run that goes on from
    `record`, else by `rule`, a `train.decay_by`."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    recorded = None if record is None else _recorded(record.optimizer.groups)
    if recorded is not None:
        return recorded & trained.keys()
    if rule == "shapes":
        return frozenset(name for name, p in trained.items() if p.dim() >= 2)
    return frozenset(_by_names(model)) & trained.keys()


def _recorded(groups: Sequence[OptimizerGroup]) -> frozenset[str] | None:
    """None where the record does not tell: without names, or one group that does not decay, which
    may be of either sort. Of two that do not, the first has the weights."""
    if not groups or not all(group.params for group in groups):
        return None
    decaying = [group for group in groups if group.weight_decay]
    if not decaying and len(groups) == 1:
        return None
    return frozenset(name for group in decaying or groups[:1] for name in group.params)


def _by_names(module: nn.Module) -> Iterator[str]:
    """Below a child, the name is looked at from that child on, and at each level again."""
    for prefix, child in module.named_children():
        if not isinstance(child, nn.LayerNorm):
            found = (f"{prefix}.{name}" for name in _by_names(child))
            yield from (name for name in found if not _UNDECAYED.search(name.lower()))
    yield from (name for name in module._parameters if not _UNDECAYED.search(name.lower()))
