"""Check that all layer files of a pipeline, and all expert files, exist.

No file lists the layer files. A layer without parameters has no file, nor does a tied layer that
the pipeline calls through a separate function (`forward_fn`). So this module uses the names of the
trained parameters, which begin with the number of their layer. These names are in `param_shapes`
or, without ZeRO, in the `param_slice_mappings` of BF16_Optimizer, where tied layers are called
`tied_modules.KEY`. Runs in fp16 and fp32 without ZeRO record no names; for them, the number of
elements in the optimizer state is checked.

Source: DeepSpeed `runtime/pipe/module.py`: `save_state_dict`, `ckpt_layer_path`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

from zerotools.core.checkpoint import Problem, Tensor
from zerotools.formats.deepspeed.partitioning.assemble_mp_rank import MpShard
from zerotools.formats.deepspeed.partitioning.pair_masters_with_weights import (
    PLAIN,
    TIED,
    layers_of_ties,
)
from zerotools.formats.deepspeed.schema.model_states import ModelStates
from zerotools.formats.deepspeed.schema.state_dict_keys import STATE, numel_of, slice_mappings
from zerotools.formats.deepspeed.schema.tag_file_names import (
    ANY_LAYER,
    TagListing,
    expert_file,
    layer_file,
)
from zerotools.io.torchzip.tree_tensors import as_tensor


def lost_layers(
    directory: Path, stages: Sequence[MpShard], layers: Mapping[str, Tensor]
) -> list[Problem]:
    """Return a problem for each parameter that a pipeline stage trained but no layer file holds.

    `stages` are the pipeline stages of one tensor-parallel rank, in order. `layers` are the tensors
    of this rank's layer files, keyed by `LAYER.NAME`. A tied parameter may be only in a layer of an
    earlier stage.
    """
    trained = [trained_by(mp_shard) for mp_shard in stages]
    if not all(trained):
        return list(_fewer_elements(directory, stages, layers))
    problems: list[Problem] = []
    for mp_shard, names in zip(stages, trained, strict=True):
        for name, numel in names.items():
            if (match := PLAIN.fullmatch(name)) and _numel(layers, name) != numel:
                file = layer_file(int(match["layer"]))
                problems.append(
                    Problem(
                        f"{directory / file} is missing or lacks {name}, which "
                        f"{mp_shard.model.file.name} lists as trained; copy or download it again",
                        file,
                        name,
                        prevents_output=True,
                        is_loss=True,
                    )
                )
    for stage, name in _lost_ties(stages, trained, layers):
        if not any(name in earlier for earlier in trained[:stage]):
            file = stages[stage].model.file.name
            message = (
                f"{directory}: no layer file holds {name}, which {file} lists as trained; copy or "
                "download the layer files again"
            )
            problems.append(Problem(message, ANY_LAYER, name, prevents_output=True, is_loss=True))
    return problems


def doubtful_layers(
    directory: Path, mp_shards: Sequence[MpShard], tensor_ranks: int
) -> Iterator[tuple[str, str]]:
    """Yield (model file, sentence) for each stage after the first that trained a tied weight but
    has no layer file with this weight.

    Either this file is lost, or the stage uses the layer file of another stage. Another stage's
    file has the weight in both cases, so the weight is not lost.
    """
    if mp_shards[0].model.module is not None:
        return
    for rank in range(tensor_ranks):
        stages = mp_shards[rank::tensor_ranks]
        trained = [trained_by(mp_shard) for mp_shard in stages]
        if all(trained):
            for stage, name in _lost_ties(stages, trained, stages[0].uncut):
                yield stages[stage].model.file.name, _doubt(directory, stages[stage], name)


def trained_by(mp_shard: MpShard) -> dict[str, int]:
    """Return the number of elements of each parameter that a stage trained, keyed by name. The
    result is empty if no file has the names.
    """
    if mp_shard.model.groups is not None:
        return {
            name: prod(shape) for group in mp_shard.model.groups for name, shape in group.items()
        }
    found: dict[str, int] = {}
    saved: list[Any] = [optim.fields.tree for optim in mp_shard.optim_states if optim is not None]
    if not saved and mp_shard.model.data_parallel_size == 1:  # a copy of BF16_Optimizer's state
        saved = [mp_shard.model.optimizer]
    for tree in saved:
        for mapping in slice_mappings(tree):
            for name, place in mapping.items():
                found[str(name)] = found.get(str(name), 0) + numel_of(place)
    return found


def _numel(layers: Mapping[str, Tensor], name: str) -> int | None:
    tensor = layers.get(name)
    return None if tensor is None else tensor.numel


def _lost_ties(
    stages: Sequence[MpShard],
    trained: Sequence[Mapping[str, int]],
    layers: Mapping[str, Tensor],
) -> Iterator[tuple[int, str]]:
    """Yield (stage, name) of each tied weight that no layer file of its stage has.

    Any layer between the named layers of the previous stage and the named layers of the next stage
    may belong to the stage.
    """
    ties = layers_of_ties(trained, layers)
    for stage, names in enumerate(trained):
        for name, numel in names.items():
            match = TIED.fullmatch(name)
            if match is not None and not any(
                _numel(layers, f"{n}.{match['name']}") == numel for n in ties[stage]
            ):
                yield stage, name


def _doubt(directory: Path, stage: MpShard, name: str) -> str:
    return (
        f"{directory}: {stage.model.file.name} lists {name} as trained, but no layer file of its "
        "stage holds it: a file is lost, or the stage shares the layer of another stage"
    )


def _fewer_elements(
    directory: Path, stages: Sequence[MpShard], layers: Mapping[str, Tensor]
) -> Iterator[Problem]:
    """Yield a problem for the layer files of a rank if they have fewer elements than were trained.

    A tied layer counts once for every stage that uses it, but may have only one file: the file of
    its first layer.
    """
    trained = sum(_elements_trained(mp_shard.model) for mp_shard in stages)
    held = sum(tensor.numel for tensor in layers.values() if tensor.dtype.is_float)
    lowest = min((int(name.partition(".")[0]) for name in layers), default=0)
    first = sum(t.numel for name, t in layers.items() if name.startswith(f"{lowest}."))
    if held < trained and not (len(stages) > 1 and trained - held == first):
        yield Problem(
            f"{directory}: the optimizer has trained {trained} elements, but the layer files hold "
            f"{held}, so some of {ANY_LAYER} are missing; copy or download them again",
            ANY_LAYER,
            prevents_output=True,
            is_loss=True,
        )


def _elements_trained(model: ModelStates) -> int:
    """Return the number of elements that an optimizer without ZeRO trained, counted in its masters
    or, without masters, in the largest state tensor of each parameter.
    """
    saved = model.optimizer
    if not isinstance(saved, Mapping):
        return 0
    for key in ("fp32_groups_flat", "fp32_groups"):
        if isinstance(saved.get(key), list):
            return sum(_sizes(saved[key]))
    state = saved.get(STATE)
    values = state.values() if isinstance(state, Mapping) else ()
    return sum(
        max(_sizes(list(each.values())), default=0) for each in values if isinstance(each, Mapping)
    )


def _sizes(values: Sequence[Any]) -> list[int]:
    found = []
    for value in values:
        stored = as_tensor(value)
        if stored is not None:
            found.append(prod(stored.shape))
        elif isinstance(value, list):
            found += _sizes(value)
    return found


def lost_experts(
    directory: Path, listing: TagListing, models: Sequence[ModelStates]
) -> Iterator[Problem]:
    """Yield a problem for each missing expert file. The model file records the number of experts in
    each layer (`num_experts`), and each expert must have a file for each model-parallel rank.
    """
    counts = models[0].num_experts
    if not isinstance(counts, list) or not listing.experts:
        return
    for mp_rank in range(len(models)):
        for layer, count in enumerate(counts):
            for expert in range(count if type(count) is int else 0):
                if (layer, expert, mp_rank) not in listing.experts:
                    file = expert_file(layer, expert, mp_rank)
                    yield Problem(
                        f"{directory / file} is missing, but the layer has {count} experts; copy "
                        "or download it again",
                        file,
                        prevents_output=True,
                        is_loss=True,
                    )
