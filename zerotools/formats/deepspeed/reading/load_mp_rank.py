"""Read the files of one model-parallel rank, and detect missing and surplus files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

from zerotools.core.checkpoint import Key, Problem, Tensor
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.dtypes import FLOAT32
from zerotools.core.errors import BadFile
from zerotools.formats.deepspeed.partitioning.assemble_mp_rank import (
    SIXTEEN_BIT,
    MpShard,
    read_mp_rank,
    whole_tensors,
)
from zerotools.formats.deepspeed.partitioning.flat_groups import (
    flat_order,
    is_round_robin,
    ranks_of_group,
)
from zerotools.formats.deepspeed.partitioning.pair_masters_with_weights import PLAIN, TIED
from zerotools.formats.deepspeed.partitioning.read_nvme_swap_files import with_swap_files
from zerotools.formats.deepspeed.reading.check_same_save import (
    compare_model,
    compare_mp_ranks,
    compare_optim_states,
    compare_parameters,
    duplicated_files,
    misnamed_files,
)
from zerotools.formats.deepspeed.reading.files_of_save import SaveFiles
from zerotools.formats.deepspeed.schema import state_dict_keys
from zerotools.formats.deepspeed.schema.expert_parallel import (
    EXPERTS,
    ExpertPlacement,
    experts_of_first_rank,
    is_data_first,
    same_weight,
)
from zerotools.formats.deepspeed.schema.model_states import (
    ModelStates,
    Shapes,
    parse_model,
    tensors_of,
)
from zerotools.formats.deepspeed.schema.optim_states import (
    BF16_OPTIMIZER,
    STAGE_3,
    OptimStates,
    parse_optim_states,
)
from zerotools.formats.deepspeed.schema.state_dict_keys import numel_of, slice_mappings
from zerotools.formats.deepspeed.schema.tag_file_names import (
    TagListing,
    is_rank_file,
    model_file,
    name_for_rank,
    optim_file,
)
from zerotools.formats.deepspeed.schema.typed_fields import Fields
from zerotools.io.files.tolerated_damage import raise_or_record, record_lost_unnamed
from zerotools.io.torchzip.pt_file import TorchFile


def load_mp_rank(
    directory: Path,
    listing: TagListing,
    mp_rank: int,
    save: SaveFiles,
    whole: Mapping[str, Tensor],
    problems: list[Problem],
    *,
    weights_alone: bool = False,
) -> MpShard:
    """Return the tensors of model-parallel rank `mp_rank`. For each missing file, a problem is
    added to `problems`.

    `whole` are the tensors of layer files and expert files; the tensors of the model file are added
    to them. With `weights_alone`, optimizer files may be missing if other files have the weights.
    """
    optim_states = _optim_states(directory, save, listing.sequence_ranks, problems)
    in_model = whole_tensors(save.model)
    first = _listed(save, optim_states, {**whole, **in_model}, problems)
    if listing.mp_ranks == [0] and listing.sequence_ranks == 1:
        optim_states = with_swap_files(directory, optim_states, first.groups or (), problems)
    models: list[ModelStates | None] = [first]
    if is_rank_file(first.file.name):
        size = len(optim_states) or first.data_parallel_size or 1
        models = stage_3_models(directory, listing, mp_rank, first, size, problems)
    present = [model for model in models if model is not None]
    problems += misnamed_files(model.file for model in present)
    problems += compare_mp_ranks(present)
    problems += compare_parameters(present, optim_states)
    trained = {name: shape for group in first.groups or () for name, shape in group.items()}
    mine = {name: tensor for name, tensor in whole.items() if _belongs(name, set(trained), first)}
    everything = {**mine, **in_model}
    if not trained or any(optim is not None for optim in optim_states):
        found = read_mp_rank(models, optim_states, everything)
        return replace(found, uncut={**whole, **in_model})
    if weights_alone and not is_rank_file(first.file.name):
        return _weights_of(read_mp_rank(models, (), everything), trained)
    name = optim_file(mp_rank, 0)
    message = (
        f"{directory / name} and the optimizer files of all other ranks are missing, so the "
        "checkpoint has no masters"
    )
    problems.append(Problem(message, name))
    return _without_masters(
        read_mp_rank(models, (), everything, is_zero3=is_rank_file(first.file.name)), trained
    )


def _listed(
    save: SaveFiles,
    optim_states: Sequence[OptimStates | None],
    whole: Mapping[str, Tensor],
    problems: list[Problem],
) -> ModelStates:
    """Return the model file, completed with the lists of the parameters in the flat buffers.

    If these lists cannot be made for the files of BF16_Optimizer, the model file is returned
    unchanged, and a problem says that the optimizer state is not read.
    """
    try:
        return with_listed_parameters(save.model, optim_states, whole)
    except BadFile as error:
        if save.lowest is None or save.lowest.kind != BF16_OPTIMIZER:
            raise
        problems.append(Problem(f"{error}; the state of the optimizer is not read"))
        return save.model


def _weights_of(mp_shard: MpShard, trained: Shapes) -> MpShard:
    """Return the tensors of a rank without masters: the weights in `trained` are not frozen, and a
    weight that no file has becomes a hole.
    """
    held = {key.name for key in mp_shard.tensors} | mp_shard.aliases.keys()
    holes = {
        Key(name, "param"): Tensor(FLOAT32, shape, ())
        for name, shape in trained.items()
        if name not in held
    }
    return replace(
        mp_shard,
        tensors={**mp_shard.tensors, **holes},
        frozen=mp_shard.frozen - trained.keys(),
    )


def _without_masters(mp_shard: MpShard, trained: Shapes) -> MpShard:
    """Return the tensors of a rank that lost its optimizer files: the masters of the weights in
    `trained` become holes, and existing 16-bit weights are kept.
    """
    copies = {
        Key(name, "param16"): tensor
        for name in trained
        if (tensor := mp_shard.tensors.get(Key(name, "param"))) and tensor.dtype.name in SIXTEEN_BIT
    }
    holes = {Key(name, "param"): Tensor(FLOAT32, shape, ()) for name, shape in trained.items()}
    return replace(
        mp_shard,
        tensors={**mp_shard.tensors, **copies, **holes},
        frozen=mp_shard.frozen - trained.keys(),
    )


def _belongs(name: str, trained: set[str], model: ModelStates) -> bool:
    """Return whether a tensor of a layer or expert file belongs to this rank. In a pipeline, the
    rank's files list its parameters; otherwise, every tensor belongs to the rank.
    """
    return model.module is not None or EXPERTS in name or name in trained or not trained


def _optim_states(
    directory: Path, save: SaveFiles, sequence_ranks: int, problems: list[Problem]
) -> list[OptimStates | None]:
    names, lowest = save.optim_files, save.lowest
    if lowest is None:
        return []
    ranks = sorted(names)
    size = data_parallel_size(save.model, lowest, ranks)
    optim_states: dict[int, OptimStates] = {}
    for rank in ranks:
        if rank >= size:
            problems.append(_left_over(directory, names[rank], size))
        elif names[rank] == lowest.file.name:
            optim_states[rank] = lowest
        else:
            try:
                optim_states[rank] = parse_optim_states(TorchFile.open(directory, names[rank]))
            except BadFile as error:  # its partitions become holes
                problems.append(Problem(str(error), names[rank]))
    for rank in range(size):
        if rank not in names:
            own = rank % sequence_ranks if sequence_ranks > 1 else None
            missing = name_for_rank(names[ranks[0]], rank, own)
            problems.append(_missing(directory, missing, size))
    found = [optim_states.get(rank) for rank in range(size)]
    problems += misnamed_files(optim.file for optim in found if optim is not None)
    problems += duplicated_files(
        optim.file
        for optim in found
        if optim is not None and any(partition.numel for partition in optim.masters)
    )
    problems += compare_optim_states(found)
    problems += compare_model(save.model, lowest)
    return found


def _left_over(directory: Path, name: str, size: int) -> Problem:
    return Problem(
        f"{directory / name} belongs to a run of more than {count_text(size, 'rank')}; move it "
        "elsewhere",
        name,
    )


def _missing(directory: Path, name: str, size: int) -> Problem:
    return Problem(
        f"{directory / name} is missing; the run had {count_text(size, 'rank')}; copy or download "
        "it again",
        name,
    )


def data_parallel_size(model: ModelStates, optim: OptimStates, ranks: Sequence[int]) -> int:
    """Return the number of ranks that share the flat buffers, according to the files."""
    count = optim.partition_count
    if isinstance(count, int) and count > 0:
        return count
    sizes = [model.data_parallel_size] if model.data_parallel_size else []
    if isinstance(count, list):
        sizes += [n for n in count if type(n) is int]
    return max(sizes, default=max(ranks) + 1)


def stage_3_models(
    directory: Path,
    listing: TagListing,
    mp_rank: int,
    first: ModelStates,
    size: int,
    problems: list[Problem],
) -> list[ModelStates | None]:
    """Return the model file of each rank at stage 3; None for a lost file if damage is tolerated.

    If the model has no frozen parameters, only the first file is read.
    """
    for (rank, dp), name in listing.models.items():
        if rank == mp_rank and dp is not None and dp >= size:
            problems.append(_left_over(directory, name, size))
    names = {dp: listing.models.get((mp_rank, dp)) for dp in range(size)}
    for dp, there in names.items():
        if there is None:
            missing = _rank_file(listing, mp_rank, dp)
            # Only the first rank's file lists tied weights, so no output is possible without it.
            problems.append(replace(_missing(directory, missing, size), prevents_output=not dp))
    if not first.frozen_shapes:
        problems += _damaged(directory, [n for n in names.values() if n != first.file.name])
        return [first]
    found: list[ModelStates | None] = []
    for dp, own in names.items():
        expected = _rank_file(listing, mp_rank, dp)
        try:
            if own is None:
                raise BadFile(
                    f"{directory / expected} is missing; the run had {count_text(size, 'rank')}, "
                    "and the file of each holds a part of every frozen parameter; copy or "
                    "download it again"
                )
            is_first = own == first.file.name
            found.append(first if is_first else parse_model(TorchFile.open(directory, own)))
        except BadFile as error:
            raise_or_record(directory / expected, error)
            found.append(None)
    problems += duplicated_files(model.file for model in found if model is not None)
    return found


def _rank_file(listing: TagListing, mp_rank: int, dp_rank: int) -> str:
    own = dp_rank % listing.sequence_ranks if listing.sequence_ranks > 1 else mp_rank
    return model_file(own, dp_rank)


def _damaged(directory: Path, names: Iterable[str | None]) -> Iterator[Problem]:
    """Yield a problem for each damaged file among `names`. No output needs these files, but a
    resuming run would read them.
    """
    for name in names:
        if name is not None:
            try:
                TorchFile.check(directory / name)
            except BadFile as error:
                yield Problem(str(error), name)


def layer_tensors(
    directory: Path, listing: TagListing, tensor_rank: int, problems: list[Problem]
) -> dict[str, Tensor]:
    """Return the tensors in the layer files of a pipeline, under the names that the flat buffers
    use (`LAYER.NAME`).
    """
    return {
        f"{layer}.{name}": tensor
        for (layer, rank), file in sorted(listing.layers.items())
        if rank == tensor_rank
        for name, tensor in _state_dict(directory, file, problems)
    }


def expert_tensors(
    directory: Path, listing: TagListing, mp_rank: int, problems: list[Problem]
) -> dict[str, Tensor]:
    """Return the tensors in expert files. Each name contains the number of the expert over all
    ranks.
    """
    return {
        name: tensor
        for (_, _, rank), file in sorted(listing.experts.items())
        if rank == mp_rank
        for name, tensor in _state_dict(directory, file, problems)
    }


def _state_dict(
    directory: Path, name: str, problems: list[Problem]
) -> Iterator[tuple[str, Tensor]]:
    try:
        file = TorchFile.open(directory, name)
    except BadFile as error:
        raise_or_record(directory / name, error)
        record_lost_unnamed(directory / name)
        return
    problems += misnamed_files([file])
    if not isinstance(file.tree, Mapping):
        raise BadFile(
            f"{file.path} holds a {type(file.tree).__name__} instead of a state dict; take another "
            "checkpoint"
        )
    for key, stored in tensors_of(file.tree, file.path).items():
        yield key, file.tensor(stored)


def with_listed_parameters(
    model: ModelStates,
    optim_states: Sequence[OptimStates | None],
    whole: Mapping[str, Tensor],
) -> ModelStates:
    """Return the model file completed with what later versions save: the parameters of each flat
    buffer, and the run's configuration.

    DeepSpeed 0.7.4 to 0.18 saves no `param_shapes` and no `ds_config` for a mixture of experts. No
    version saves `param_shapes` at stage 0, where BF16_Optimizer writes optimizer files. But the
    optimizer files name the parameters of each rank's partition in `param_slice_mappings`, in the
    optimizer's order, and the shapes are known from the weights. In a pipeline, a tied parameter is
    called `tied_modules.KEY.NAME` there, and its weight is `LAYER.NAME` in the file of a layer,
    perhaps of another stage.

    The model file is returned unchanged if it already lists the parameters, or if the optimizer
    files do not name them. `whole` are the weights of the model file, the expert files and the
    layer files.

    Source: DeepSpeed 0.18.9 `runtime/engine.py`: `_save_moe_checkpoint`;
    `runtime/base_optimizer.py` and `runtime/zero/stage_1_and_2.py`: `_create_param_mapping`.

    Raises:
        BadFile: a missing file names some of the parameters, or has the weight of a parameter.
    """
    present = [optim for optim in optim_states if optim is not None]
    if model.groups is not None or not present or present[0].kind == STAGE_3:
        return model
    first = present[0]
    if first.groups is not None or not any(slice_mappings(first.fields.tree)):
        return model
    tree = dict(model.fields.tree)
    for key in (state_dict_keys.DS_CONFIG, state_dict_keys.DS_VERSION):
        tree.setdefault(key, first.file.tree.get(key))
    fields = Fields(model.file.path, tree)
    named = replace(model, fields=fields)
    groups = [
        _shapes(number, named, optim_states, first, whole) for number in range(len(first.masters))
    ]
    tree[state_dict_keys.PARAM_SHAPES] = groups
    return replace(named, groups=groups)


def _shapes(
    number: int,
    model: ModelStates,
    optim_states: Sequence[OptimStates | None],
    first: OptimStates,
    whole: Mapping[str, Tensor],
) -> Shapes:
    """Return the names and shapes of the parameters in one group, in the order of its flat
    buffer.
    """
    ranks = ranks_of_group(number, optim_states, first)
    sizes: dict[str, int] = {}
    for part, optim in enumerate(_holders(ranks, optim_states, is_data_first(model.ds_config))):
        if optim is None:
            raise BadFile(
                f"{first.file.path.parent}: the optimizer file of partition {part} of group "
                f"{number} is missing, and {model.file.name} does not list its parameters; copy "
                "the file back"
            )
        mappings = slice_mappings(optim.fields.tree)
        for name, place in (mappings[number] if number < len(mappings) else {}).items():
            sizes[str(name)] = sizes.get(str(name), 0) + numel_of(place)
    known: Mapping[str, int] = {name: numel for name, numel in sizes.items() if numel}
    if ranks < len(optim_states):
        known = _with_unnamed_experts(known, number, optim_states, ranks, whole)
    names = flat_order([*known], ranks, round_robin=is_round_robin(model, first))
    return {name: _shape(name, known[name], model, first, whole) for name in names}


def _with_unnamed_experts(
    known: Mapping[str, int],
    number: int,
    optim_states: Sequence[OptimStates | None],
    ranks: int,
    whole: Mapping[str, Tensor],
) -> Mapping[str, int]:
    """Return `known`, the parameters that the files name for a group of experts, completed with the
    experts that they do not name.

    DeepSpeed up to 0.12 names only the first part of such a group, because it computes the
    partitions as if all ranks shared the group. If the elements of all experts of a rank fill the
    group exactly, the group has all these experts in the model's order, beginning with `known`.
    Otherwise `known` is returned unchanged. The weights are compared with the masters before they
    are used.
    """
    masters = [optim.masters[number].numel for optim in optim_states if optim is not None]
    longest = max(masters) * ranks
    if sum(known.values()) + 2 * ranks > longest:
        return known
    ep_size = len(optim_states) // ranks
    natural = {name: whole[name].numel for name in experts_of_first_rank(whole, ep_size)}
    is_filled = 0 <= longest - sum(natural.values()) < 2 * ranks
    return natural if is_filled and [*natural][: len(known)] == [*known] else known


def _holders(
    ranks: int, optim_states: Sequence[OptimStates | None], data_first: bool
) -> Iterator[OptimStates | None]:
    """Yield one optimizer file for each partition of a group, or None if all its files are missing.

    One file is enough, because all expert-parallel ranks use the same names for their experts.
    """
    size = len(optim_states)
    placement = ExpertPlacement(size, max(1, size // ranks), data_first)
    for part in range(ranks):
        held = (
            optim_states[placement.ranks_of(expert_rank)[part]]
            for expert_rank in range(placement.ep_size)
        )
        yield next((optim for optim in held if optim is not None), None)


def _shape(
    name: str,
    numel: int,
    model: ModelStates,
    first: OptimStates,
    whole: Mapping[str, Tensor],
) -> tuple[int, ...]:
    found = [whole[name].shape] if name in whole else _shapes_elsewhere(name, numel, whole)
    where = f"{first.file.path.parent}: {first.file.name} has {numel} elements of {name}"
    if not found:
        raise BadFile(
            f"{where}, and no other file has a weight of that name and size; copy the missing "
            "model, layer or expert file back"
        )
    if len(set(found)) > 1 or prod(found[0]) != numel:
        raise BadFile(
            f"{where}, but the weight has shape {' or '.join(map(str, dict.fromkeys(found)))}: "
            "the files do not belong together; take another checkpoint"
        )
    return found[0]


def _shapes_elsewhere(name: str, numel: int, whole: Mapping[str, Tensor]) -> list[tuple[int, ...]]:
    """Return the shapes that a parameter with `numel` elements may have, if the file with its
    weight is missing.

    They are the shapes of the same weight of other experts in the layer or, for a tied parameter,
    of weights in pipeline layers.
    """
    if tied := TIED.fullmatch(name):
        held = (
            tensor.shape
            for other, tensor in whole.items()
            if PLAIN.fullmatch(other) and other.partition(".")[2] == tied["name"]
        )
        return [shape for shape in held if prod(shape) == numel]
    return [tensor.shape for other, tensor in whole.items() if same_weight(name, other)]
