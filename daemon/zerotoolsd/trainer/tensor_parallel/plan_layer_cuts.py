"""Plans which layers of a model are split among tensor ranks, according to transformers' plan.

A plan of transformers has a style for each layer (`model.layers.*.mlp.up_proj`). The styles:

colwise                          a rank has rows m to n of the weight `[out, in]`, and computes
                                 columns m to n of the output; the input is whole
rowwise                          a rank has columns m to n of the weight, and reads columns m to n
                                 of the input; the outputs of the ranks are summed
colwise_gather_output,           as colwise, and the columns are gathered
colwise_rep
rowwise_split_input,             as rowwise, but the input is whole
rowwise_rep
replicated_with_grad_allreduce   whole weights that are applied to split values: each rank has a
                                 part of their gradient
embedding_rowwise, replicate     the layer is not split; its input and output are whole

A layer is split together with its adapters, which compute `weight + B A`. In a colwise layer, a
rank has the same rows of `weight` and of B, and all of A. In a rowwise layer, it has the same
columns of `weight` and of A, and all of B.

Source: transformers, distributed/tensor_parallel.py (before 5.20 integrations/tensor_parallel.py).
All other styles are refused, for example the styles for mixtures of experts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

from torch import nn

from zerotools.core.errors import BadRequest, Unsupported

COLUMNS, GATHERED_COLUMNS, ROWS, SPLIT_ROWS, SUMMED = (
    "columns",
    "gathered columns",
    "rows",
    "split rows",
    "summed",
)
"""The kinds of split of a layer.

With `SUMMED`, the weights are whole and only the gradients are in parts.
"""
_STYLES = {
    "colwise": COLUMNS,
    "colwise_gather_output": GATHERED_COLUMNS,
    "colwise_rep": GATHERED_COLUMNS,
    "rowwise": ROWS,
    "rowwise_split_input": SPLIT_ROWS,
    "rowwise_rep": SPLIT_ROWS,
    "replicated_with_grad_allreduce": SUMMED,
}
_WHOLE = ("embedding_rowwise", "embedding_colwise", "replicate")
_MAY_STAY_WHOLE = (GATHERED_COLUMNS, SPLIT_ROWS)
_DIMENSIONS = {COLUMNS: 0, GATHERED_COLUMNS: 0, ROWS: 1, SPLIT_ROWS: 1}
_BASE = "base_layer"
_HALVES = {COLUMNS: "lora_B", ROWS: "lora_A"}
"""For each kind of split, the half of an adapter that is split with its layer.

If both input and output of a layer are whole, neither half is split.
"""
_MOST_LISTED = 64
_NUMBER = re.compile(r"\.\d+(?=\.|$)")


@dataclass(frozen=True)
class LayerCuts:
    """How the layers of a model are split among `ranks` tensor ranks.

    Attributes:
        layers: name of each split layer -> its kind of split, such as `COLUMNS`.
        dimensions: name of each split parameter -> the dimension that is split. All other
            parameters are whole.
        notes: messages about layers of the plan that are not split.
    """

    ranks: int
    layers: Mapping[str, str]
    dimensions: Mapping[str, int]
    notes: tuple[str, ...] = ()


NO_CUTS = LayerCuts(1, {}, {})


def layer_cuts(model: Any, ranks: int) -> LayerCuts:
    """Return how the layers of the transformers model `model` are split among `ranks` ranks.

    Raises:
        Unsupported: transformers has no plan for the model, or the plan has unsupported styles.
        BadRequest: the number of ranks does not divide the number of heads, or the size of a layer.
    """
    if ranks == 1:
        return NO_CUTS
    prefix, kind = f"zero.tensor_ranks = {ranks}", type(model).__name__
    styles = dict(_planned(model, prefix))
    _refuse_unplanned(model, styles, prefix)
    _check_heads(model, styles, ranks)
    notes = []
    for name, why in list(_kept_whole(model, styles, ranks)):
        del styles[name]
        notes.append(f"note: {name} is not split among the {ranks} tensor ranks, because {why}")
    if not {ROWS, SPLIT_ROWS} & set(styles.values()):  # a head alone is not worth it
        raise Unsupported(
            f"{prefix}: transformers has no plan (tp_plan) to split the layers of {kind} among "
            "ranks; remove zero.tensor_ranks"
        )
    layers = dict(_with_adapters(model, styles))
    return LayerCuts(ranks, layers, dict(_dimensions(model, layers)), tuple(notes))


def _planned(model: Any, prefix: str) -> Iterator[tuple[str, str]]:
    # In transformers 5.1 the plan of an object lacks that of its class, which is for the head.
    plans = (getattr(owner, "_tp_plan", None) or {} for owner in (type(model), model))
    plan: Mapping[str, str] = {key: style for each in plans for key, style in each.items()}
    names = [name for name, _ in model.named_modules()]
    parameters = [name for name, _ in model.named_parameters()]
    for pattern, style in plan.items():
        layers = [name for name in names if _NUMBER.sub(".*", name) == pattern]
        found = layers or [name for name in parameters if _NUMBER.sub(".*", name) == pattern]
        if not found or style in _WHOLE:
            continue
        if style not in _STYLES or not layers:
            raise Unsupported(
                f"{prefix}: transformers' plan for {type(model).__name__} splits {found[0]} with "
                f"the style {style!r}, which zerotools does not support; remove zero.tensor_ranks"
            )
        for name in layers:
            layer = _linear(model, name)
            if _STYLES[style] != SUMMED and type(layer) is not nn.Linear:
                raise Unsupported(
                    f"{prefix}: {name} is a {type(layer).__name__}, but only layers of the class "
                    "Linear can be split; remove zero.tensor_ranks"
                )
            yield name, _STYLES[style]


def _refuse_unplanned(model: Any, styles: Mapping[str, str], prefix: str) -> None:
    """Raise Unsupported if a module with split weights also has a weight that the plan does not
    list.

    If such a weight is applied to split values, a rank has only a part of its gradient. Older plans
    do not mark these weights. `prefix` is the beginning of the error message.
    """
    for parent in sorted({_above(name) for name, cut in styles.items() if cut == COLUMNS}):
        for name, _ in model.get_submodule(parent).named_parameters(parent):
            if not any(name.startswith(f"{planned}.") for planned in styles):
                raise Unsupported(
                    f"{prefix}: transformers' plan for {type(model).__name__} splits layers of "
                    f"{parent}, but does not list {name}; upgrade transformers, or remove "
                    "zero.tensor_ranks"
                )


def _check_heads(model: Any, styles: Mapping[str, str], ranks: int) -> None:
    if not any(cut == COLUMNS and _is_attention(model, name) for name, cut in styles.items()):
        return
    text = model.config.get_text_config()
    kinds = (("num_attention_heads", "attention"), ("num_key_value_heads", "key-value"))
    values = [(getattr(text, key, None), what) for key, what in kinds]
    heads = [(n, what) for value, what in values for n in _each(value) if isinstance(n, int)]
    for count, what in heads:
        if count % ranks:
            raise BadRequest(
                f"zero.tensor_ranks = {ranks}: the model has {count} {what} "
                f"head{'s' * (count > 1)}, which {ranks} ranks do not divide evenly; "
                f"{_instead(n for n, _ in heads)}"
            )


def _each(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else [value]


def _instead(sizes: Iterable[int]) -> str:
    """Return advice for a number of ranks that does not divide all `sizes`: it names numbers that
    do.
    """
    common = gcd(*sizes)
    found = [str(n) for n in range(2, min(common, _MOST_LISTED) + 1) if common % n == 0]
    return (
        f"set zero.tensor_ranks to {' or '.join(found)}, or remove it"
        if found
        else "remove zero.tensor_ranks"
    )


def _is_attention(model: Any, name: str) -> bool:
    above = _above(name)
    return (
        "attn" in above or "attention" in above or hasattr(model.get_submodule(above), "head_dim")
    )


def _kept_whole(model: Any, styles: Mapping[str, str], ranks: int) -> Iterator[tuple[str, str]]:
    uses: dict[int, int] = {}
    for _, parameter in model.named_parameters(remove_duplicate=False):
        uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    for name, cut in styles.items():
        if cut == SUMMED:
            continue
        weight = _linear(model, name).weight
        size = weight.shape[_DIMENSIONS[cut]]
        if cut in _MAY_STAY_WHOLE and uses[id(weight)] > 1:
            yield name, "another layer has the same weight"
        elif cut in _MAY_STAY_WHOLE and size % ranks:
            yield (
                name,
                f"they do not divide its {size} {'columns' if cut == SPLIT_ROWS else 'rows'}",
            )
        elif size % ranks or uses[id(weight)] > 1:
            raise BadRequest(
                f"zero.tensor_ranks = {ranks}: {ranks} ranks do not evenly divide the {size} "
                f"{'inputs' if cut == ROWS else 'outputs'} of {name}; {_instead([size])}"
            )


def _linear(model: Any, name: str) -> Any:
    """Return the linear layer `name` of `model`, without its adapters."""
    layer = model.get_submodule(name)
    return getattr(layer, _BASE, layer)


def _with_adapters(model: Any, styles: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    for name, cut in styles.items():
        layer = model.get_submodule(name)
        if not hasattr(layer, _BASE):
            yield name, cut
            continue
        yield f"{name}.{_BASE}", cut
        half = _HALVES.get(cut)
        for adapter in () if half is None else getattr(layer, half):
            yield f"{name}.{half}.{adapter}", cut


def _dimensions(model: Any, layers: Mapping[str, str]) -> Iterator[tuple[str, int]]:
    for name, cut in layers.items():
        if cut == SUMMED:
            continue
        yield f"{name}.weight", _DIMENSIONS[cut]
        if model.get_submodule(name).bias is not None and _DIMENSIONS[cut] == 0:
            yield f"{name}.bias", 0


def _above(name: str) -> str:
    return name.rpartition(".")[0]
