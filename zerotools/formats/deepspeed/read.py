"""A whole DeepSpeed checkpoint: tag, columns, problems, and the state around the tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from zerotools.core.checkpoint import Checkpoint, Key, Opaque, Origin, Problem, Tensor
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.formats.deepspeed.column import Column, read_column, whole_tensors
from zerotools.formats.deepspeed.files import Listing, list_files
from zerotools.formats.deepspeed.find import Tag, find
from zerotools.formats.deepspeed.model import ModelStates, parse_model
from zerotools.formats.deepspeed.shards import STAGE_3, Shard, parse_shard
from zerotools.io.torchzip.torchfile import TorchFile


def read(path: Path, *, tag: str | None = None) -> Checkpoint:
    """The checkpoint that `path` means: a tag directory, a save directory, or a run's directory.

    Reads the pickles of the files, and no tensor data. Missing shards are problems, and become
    holes that `plan` refuses.

    Raises:
        BadRequest: there is no such path or tag.
        BadFile: it is no DeepSpeed checkpoint, or a damaged one.
        Unsupported: a layout that the files do not explain.
    """
    if not path.exists():
        raise BadRequest(f"{path} does not exist")
    found = find(path, tag)
    if found is None:
        raise BadFile(f"{path} holds no *_model_states.pt of DeepSpeed")
    directory = found.directory
    listing = list_files(directory)
    _refuse_unreadable(directory, listing)
    problems: list[Problem] = []
    column = _read_one(directory, listing, problems)
    return Checkpoint(
        root=directory,
        tensors=column.tensors,
        origin=_origin(path, found, column),
        aliases=column.aliases,
        state=_state(column),
        files=_sizes(directory, listing),
        companions=_companions(directory),
        problems=problems,
    )


def _refuse_unreadable(directory: Path, listing: Listing) -> None:
    if not listing.models:
        raise BadFile(f"{directory} has no *_model_states.pt of DeepSpeed")
    if listing.experts or listing.expert_optimizers:
        raise Unsupported(f"{directory} holds mixture-of-experts files, which are not read yet")
    if listing.layers:
        raise Unsupported(f"{directory} holds pipeline layer files, which are not read yet")
    if len(listing.mp_ranks) > 1:
        raise Unsupported(
            f"{directory} holds {len(listing.mp_ranks)} model-parallel ranks, whose shards are "
            "not merged yet"
        )


def _read_one(directory: Path, listing: Listing, problems: list[Problem]) -> Column:
    (mp,) = listing.mp_ranks
    first = _first_model(directory, listing, mp)
    shards = _read_shards(directory, listing, mp, first, problems)
    models = [first]
    if any(shard is not None and shard.kind == STAGE_3 for shard in shards):
        models = _read_models(directory, listing, mp, first, len(shards), problems)
    return read_column(models, shards, whole_tensors(first))


def _first_model(directory: Path, listing: Listing, mp: int) -> ModelStates:
    name = listing.models.get((mp, None)) or listing.models.get((mp, 0))
    if name is None:
        present = min(dp for rank, dp in listing.models if rank == mp and dp is not None)
        name = listing.models[mp, present]
    return parse_model(TorchFile.open(directory, name))


def _read_shards(
    directory: Path, listing: Listing, mp: int, model: ModelStates, problems: list[Problem]
) -> list[Shard | None]:
    """The optimizer files of every data-parallel rank, in rank order."""
    ranks = sorted(dp for rank, dp in listing.shards if rank == mp)
    if not ranks:
        return []
    shards = {rank: parse_shard(_open(directory, listing.shards[mp, rank])) for rank in ranks[:1]}
    size = _data_parallel_size(model, shards[ranks[0]], ranks)
    for rank in ranks[1:]:
        name = listing.shards[mp, rank]
        if rank >= size:
            message = f"{directory / name} is left over from a run of more than {size} ranks"
            problems.append(Problem(message, name))
            continue
        shards[rank] = parse_shard(_open(directory, name))
    template = listing.shards[mp, ranks[0]]
    for rank in range(size):
        if rank not in shards:
            name = template.replace(f"zero_pp_rank_{ranks[0]}_", f"zero_pp_rank_{rank}_")
            message = f"{directory / name} is missing; the run had {size} ranks"
            problems.append(Problem(message, name))
    return [shards.get(rank) for rank in range(size)]


def _open(directory: Path, name: str) -> TorchFile:
    return TorchFile.open(directory, name)


def _data_parallel_size(model: ModelStates, shard: Shard, ranks: Sequence[int]) -> int:
    """The number of ranks that share the flat vectors, as the files say."""
    count = shard.partition_count
    if isinstance(count, int) and count > 0:
        return count
    if isinstance(count, list) and count and all(type(n) is int and n > 0 for n in count):
        return int(max(count))
    return model.data_parallel_size or max(ranks) + 1


def _read_models(
    directory: Path,
    listing: Listing,
    mp: int,
    first: ModelStates,
    size: int,
    problems: list[Problem],
) -> list[ModelStates]:
    """Stage 3: one model file per rank. Only frozen parameters make the others worth reading."""
    for (rank, dp), name in listing.models.items():
        if rank == mp and dp is not None and dp >= size:
            message = f"{directory / name} is left over from a run of more than {size} ranks"
            problems.append(Problem(message, name))
    models = []
    for dp in range(size):
        found = listing.models.get((mp, dp))
        if found is None:
            missing = f"zero_pp_rank_{dp}_mp_rank_{mp:02d}_model_states.pt"
            message = f"{directory / missing} is missing; the run had {size} ranks"
            problems.append(Problem(message, missing))
        elif first.frozen_shapes:
            models.append(
                first if found == first.file.name else parse_model(_open(directory, found))
            )
    if first.frozen_shapes and len(models) != size:
        raise BadFile(f"{problems[-1].message}; it holds a part of every frozen parameter")
    return models or [first]


def _origin(path: Path, found: Tag, column: Column) -> Origin:
    model = column.model
    present = [shard for shard in column.shards if shard is not None]
    stage: int | None = 0
    if present:
        stage = present[0].stage
    details: dict[str, Any] = {
        "optimizer_class": present[0].kind if present else None,
        "precision": _precision(column),
        "frozen": sorted(column.frozen),
        "trainable": sum(1 for key in column.tensors if _is_trained(column, key)),
        "elastic": bool(present) and not present[0].is_rigid,
    }
    return Origin(
        "deepspeed",
        path,
        framework_version=model.version,
        world_size=len(column.shards) or model.data_parallel_size,
        stage=stage,
        step=model.fields.maybe("global_steps", int),
        tag=found.name,
        other_tags=found.others,
        notes=found.notes,
        details=details,
    )


def _is_trained(column: Column, key: Key) -> bool:
    return key.role == "param" and key.name not in column.frozen


def _precision(column: Column) -> str:
    """The type of the run's weights: of `module`, whose stage-3 placeholders have it too."""
    names = {"float16": "fp16", "bfloat16": "bf16"}
    buffers = column.model.buffer_names or frozenset()
    for name, stored in (column.model.module or {}).items():
        if name not in buffers and stored.dtype.is_float:
            return names.get(stored.dtype.name, "fp32")
    return "fp32"


def _state(column: Column) -> dict[str, Any]:
    """What belongs to the run beside its tensors; foreign objects stay opaque."""
    present = [shard for shard in column.shards if shard is not None]
    tree = column.model.fields.tree
    state: dict[str, Any] = {
        "lr_scheduler": tree.get("lr_scheduler"),
        "ds_config": tree.get("ds_config"),
        "skipped_steps": tree.get("skipped_steps"),
        "global_samples": tree.get("global_samples"),
        "client_state": column.model.client_state,
    }
    if present:
        state["param_groups"] = _param_groups(column, present[0])
        state["loss_scaler"] = _plain(present[0].fields.tree.get("loss_scaler"))
    return state


def _param_groups(column: Column, shard: Shard) -> list[dict[str, Any]]:
    """torch's param groups with the names of their parameters instead of numbers."""
    groups = []
    for number, saved in enumerate(shard.param_groups or [{} for _ in column.groups]):
        members = saved.get("params", [number])
        numbers = members if isinstance(members, list) else []
        names = [
            name
            for member in numbers
            if type(member) is int and member < len(column.groups)
            for name in column.groups[member].shapes
        ]
        scalars = next(
            (shard.scalars[m] for m in numbers if type(m) is int and m < len(shard.scalars)), {}
        )
        groups.append({**saved, "state": dict(scalars), "params": names})
    return groups


def _plain(value: Any) -> Any:
    """An opaque object's attributes as a dict, with its class; anything else as it is."""
    if isinstance(value, Opaque) and isinstance(value.state, Mapping):
        return {"class": f"{value.module}.{value.name}", **value.state}
    return value


def _sizes(directory: Path, listing: Listing) -> dict[str, int]:
    names = [*listing.models.values(), *listing.shards.values()]
    return {name: (directory / name).stat().st_size for name in names}


_COMPANIONS = ("config.json", "generation_config.json")


def _companions(directory: Path) -> dict[str, Path]:
    """Model files beside the tag directory, as the HF Trainer saves them."""
    return {
        entry.name: entry
        for entry in sorted(directory.parent.iterdir())
        if (entry.name in _COMPANIONS or entry.name.startswith("tokenizer")) and entry.is_file()
    }


__all__ = ["Tensor", "read"]
