"""The param groups of Megatron's optimizers, and the parameters of each.

Param groups are saved without their parameters. Megatron-Core makes them by a rule: with expert
parallelism, experts are in separate groups. Tensors with one dimension, and biases, have no weight
decay. The embedding and the output layer may have another learning rate. The groups name these
kinds (`is_expert_parallel`, `wd_mult`, `is_decoupled_lr`). If the rule gives each parameter one
group they are returned, else none is.

Source: `_get_param_groups` of megatron/core/optimizer/__init__.py, 0.12 to 0.16.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from zerotools.formats.megatron.origin import EMBEDDING, OUTPUT

_MOST_OPTIMIZERS = 64
Group = Mapping[str, Any]


def optimizers_in(tree: Mapping[Any, Any]) -> tuple[Mapping[Any, Any], ...]:
    """Return the trees of the optimizers in common.pt or a rank's file: one, or several by
    number."""
    found = tree.get("optimizer")
    if isinstance(found, list):
        found = dict(enumerate(found[:_MOST_OPTIMIZERS]))
    if not isinstance(found, Mapping):
        return ()
    numbered = [found[n] for n in range(_MOST_OPTIMIZERS) if n in found]
    return tuple(each for each in numbered or [found] if isinstance(each, Mapping))


def groups_in(optimizer: Mapping[Any, Any]) -> Iterator[Group]:
    """Yield the param groups of one optimizer, without copies of their values."""
    inner = optimizer.get("optimizer", optimizer)
    groups = inner.get("param_groups") if isinstance(inner, Mapping) else None
    for group in groups if isinstance(groups, list) else ():
        if isinstance(group, Mapping):
            yield {str(name): value for name, value in group.items()}


def fitting(
    name: str, shape: tuple[int, ...], groups: Sequence[Group], args: Mapping[str, Any]
) -> Iterator[int]:
    """Yield the numbers of the groups that a parameter can be in."""
    is_expert = ".experts." in name and any(g.get("is_expert_parallel") is True for g in groups)
    decays = not (len(shape) == 1 or name.endswith(".bias"))
    if args.get("apply_wd_to_qk_layernorm") is True and (
        "q_layernorm." in name or "k_layernorm." in name
    ):
        decays = True
    is_apart = name in (EMBEDDING, OUTPUT) and any(g.get("is_decoupled_lr") is True for g in groups)
    for number, group in enumerate(groups):
        if (
            (group.get("is_expert_parallel") is True) == is_expert
            and (group.get("wd_mult", 1.0) != 0) == decays
            and (group.get("is_decoupled_lr") is True) == is_apart
        ):
            yield number
