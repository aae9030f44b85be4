"""Low-rank adapters on frozen weights: the parameters that a LoRA run trains.

An adapter of rank r on a matrix of n by m is two matrices, r by m and n by r (Hu et al. 2021).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from zerotools.ops.estimate.architecture import Architecture
from zerotools.ops.estimate.model_shape import ModelShape
from zerotools.ops.estimate.state import Parameter

_DEFAULT = ("q_proj", "v_proj")
_DEFAULTS = {
    "gpt2": ("c_attn",),
    "gpt_neox": ("query_key_value",),
    "phi": ("q_proj", "v_proj", "fc1", "fc2"),
    "phi3": ("qkv_proj",),
}
"""The default targets of peft (`TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING`)."""
ALL_LINEAR = "all-linear"


def with_adapters(
    model: ModelShape, rank: int, targets: Sequence[str] = (), *, packs_frozen: bool = False
) -> ModelShape:
    """Return the model with all its weights frozen and adapters on the linear layers of its blocks
    that `targets` name; without names, on those that peft chooses for most models. With
    `packs_frozen`, all matrices of the blocks count as packed."""
    frozen = tuple(
        replace(each, is_trained=False, is_packed=packs_frozen and each.is_hidden)
        for each in model.parameters
    )
    architecture = model.architecture
    if architecture is None:
        said = "adapters are not counted, because the names of the model's layers are not known"
        return replace(model, parameters=frozen, notes=(*model.notes, said))
    adapters = tuple(
        Parameter(shape, block=str(layer), is_hidden=True)
        for layer in range(architecture.layers)
        for shape in _adapters(architecture, rank, tuple(targets))
    )
    return replace(model, parameters=frozen + adapters)


def _adapters(
    model: Architecture, rank: int, targets: tuple[str, ...]
) -> Iterator[tuple[int, int]]:
    wanted = targets or _DEFAULTS.get(model.model_type, _DEFAULT)
    ends = {target.rsplit(".", 1)[-1] for target in wanted}
    for name, rows, columns in _linear_layers(model):
        if ALL_LINEAR in wanted or name in ends:
            yield (rank, columns)
            yield (rows, rank)


def _linear_layers(model: Architecture) -> Iterator[tuple[str, int, int]]:
    """Yield name, rows and columns of each linear layer of a block."""
    hidden, queries, keys = model.hidden, model.queries, model.keys
    if "qkv" in model.family.joined:
        joined = {"gpt2": "c_attn", "gpt_neox": "query_key_value"}.get(model.model_type, "qkv_proj")
        yield (joined, queries + 2 * keys, hidden)
    else:
        yield ("q_proj", queries, hidden)
        yield ("k_proj", keys, hidden)
        yield ("v_proj", keys, hidden)
    yield ("o_proj", hidden, queries)
    if model.experts:
        return
    width = model.intermediate
    if "mlp" in model.family.joined:
        yield ("gate_up_proj", 2 * width, hidden)
    elif model.family.is_gated:
        yield ("gate_proj", width, hidden)
        yield ("up_proj", width, hidden)
    else:
        yield ("up_proj", width, hidden)
    yield ("down_proj", hidden, width)
