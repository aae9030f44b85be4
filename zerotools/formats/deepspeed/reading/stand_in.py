"""A substitute for a lost model file: that of another checkpoint of the same run.

The optimizer files of stages 1 and 2 and of BF16_Optimizer have the masters of every parameter in
flat buffers, and only the model file lists their names and shapes: `param_shapes`, which is the
same in every checkpoint of a run. So if it is lost and the user names another checkpoint, that
checkpoint's lists are used, and none of its tensors. They must give every rank a partition of its
size. If the optimizer files have names themselves (`param_slice_mappings`), these must be in the
order of the lists.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from zerotools.core.errors import BadFile, ZerotoolsError
from zerotools.formats.deepspeed.partitioning.parameter_order import is_round_robin
from zerotools.formats.deepspeed.schema import model_tree
from zerotools.formats.deepspeed.schema.fields import Fields
from zerotools.formats.deepspeed.schema.file_names import TagListing, model_file
from zerotools.formats.deepspeed.schema.model_states import ModelStates, parse_model
from zerotools.formats.deepspeed.schema.optim_states import OptimStates
from zerotools.formats.deepspeed.schema.optimizer_tree import numel_of, slice_mappings, start_of
from zerotools.formats.deepspeed.schema.tag import open_tag
from zerotools.io.files.damage import stand_in, tolerate
from zerotools.io.torchzip.pt_file import TorchFile

_OF_THE_RUN = (
    model_tree.BUFFER_NAMES, model_tree.PARAM_SHAPES, model_tree.SHARED_PARAMS,
    model_tree.DP_WORLD_SIZE, model_tree.MP_WORLD_SIZE, model_tree.DS_CONFIG, model_tree.DS_VERSION,
    model_tree.NUM_EXPERTS, model_tree.TENSOR_PARALLEL_INFO,
)  # fmt: skip
"""The keys that are the same in every checkpoint of a run."""
ADVICE = (
    "only this file has the names and shapes of the parameters: replace it by another copy, or "
    "name another checkpoint of the same run with --fill-from"
)


def with_lost_models(listing: TagListing) -> TagListing:
    """Return the listing with the model files that optimizer files of stages 1 and 2 should
    have."""
    lost = {mp_rank for mp_rank, _, _ in listing.optim_files} - {rank for rank, _ in listing.models}
    models: dict[tuple[int, int | None], str] = {
        (rank, None): model_file(rank) for rank in sorted(lost)
    }
    return replace(listing, models={**listing.models, **models})


def stand_in_model(
    directory: Path, name: str, mp_rank: int, optim: OptimStates | None, error: BadFile
) -> ModelStates:
    """Return the substitute for the model file `name`, which is lost for the reason `error`; all of
    its tensors are lost. `optim` is one of its optimizer files.

    Raises:
        BadFile: `error`, if no substitute exists or it does not fit the optimizer file.
    """
    other = stand_in()
    model = None if other is None or optim is None else _model_of(other, mp_rank)
    if model is None or optim is None or any(_misplaced(model, optim)):
        raise BadFile(f"{error}; {ADVICE}") from None
    path = directory / name
    said = f"{error}; names and shapes are taken from {model.file.path}"
    tolerate(path, BadFile(said))
    size = path.stat().st_size if path.is_file() else 0
    behind = {stored.storage.key: size for stored in (model.module or {}).values()}
    tree = {key: model.fields.tree[key] for key in _OF_THE_RUN if key in model.fields}
    return replace(
        model,
        file=TorchFile(directory, name, size, tree, {}, behind),
        fields=Fields(path, tree),
        fragments={},
        frozen_shapes={},
    )


def _model_of(path: Path, mp_rank: int) -> ModelStates | None:
    """Return the model file of another checkpoint, or None if it has none that lists parameters."""
    try:
        found, listing = open_tag(path, None)
        name = listing.models.get((mp_rank, None))
        model = None if name is None else parse_model(TorchFile.open(found.directory, name))
    except (ZerotoolsError, OSError):
        return None
    return None if model is None or model.groups is None else model


def _misplaced(model: ModelStates, optim: OptimStates) -> Iterator[str]:
    """Yield names that the optimizer file has in another group, or in another order. A rank has
    some of each group's names, which follow one another; under round robin DeepSpeed writes other
    names than those that lie there, and the groups alone are compared."""
    is_ordered = not is_round_robin(model, optim)
    for number, mapping in enumerate(slice_mappings(optim.fields.tree)):
        groups = model.groups or []
        names = [*groups[number]] if number < len(groups) else []
        filled = [(start_of(at), str(name)) for name, at in mapping.items() if numel_of(at)]
        own = [name for _, name in sorted(filled)]
        first = names.index(own[0]) if own and own[0] in names else 0
        if (names[first : first + len(own)] != own) if is_ordered else set(own) - set(names):
            yield own[0]
