"""Read a Megatron checkpoint of any kind: one directory for all ranks (torch_dist, zarr, or torch's
DCP), or legacy rank files.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from zerotools.core.checkpoint import Checkpoint, Key, Problem, Tensor
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadFile, BadRequest, Unsupported
from zerotools.formats.megatron.bridge_config import CONFIG as BRIDGE
from zerotools.formats.megatron.bridge_config import bridge_facts
from zerotools.formats.megatron.file_names import COMMON, CONFIG, RANK, RANK_FILES
from zerotools.formats.megatron.flat_buckets import proved_state, with_state
from zerotools.formats.megatron.legacy_ranks.read_rank_files import read_ranks
from zerotools.formats.megatron.read_fsdp_dtensor import is_fsdp_dtensor, read_fsdp_dtensor
from zerotools.formats.megatron.torch_dist_keys import BUCKETS, keys_of, stack_of, weights_alone
from zerotools.formats.megatron.training_state import (
    MegatronFacts,
    MegatronNative,
    aliases_of,
    facts_of,
    iteration_problem,
    optimizers_in,
    origin_of,
)
from zerotools.formats.megatron.unstack_tensors import (
    join_halves,
    reorder_gated_lora,
    unstack_tensors,
)
from zerotools.io.distcp.check_data_files import data_files, existing_sizes, mixed_saves
from zerotools.io.distcp.dcp_directory import (
    load_metadata,
    metadata_names,
    saving_ranks,
    tensor_of,
)
from zerotools.io.distcp.dcp_file_names import METADATA
from zerotools.io.distcp.item_chunks import BlobTrees, Items
from zerotools.io.distcp.metadata import Item, Metadata, SavedTensor
from zerotools.io.files.directory_entries import names_in
from zerotools.io.files.regular_files import read_regular
from zerotools.io.huggingface.model_sidecars import model_sidecars
from zerotools.io.torchzip.pt_file import TorchFile


def read(path: Path) -> Checkpoint:
    """Return the checkpoint in the directory `path`.

    If zerotools recognises this kind of checkpoint but does not read it, `Origin.refusal` has the
    reason.

    Raises:
        BadRequest: the directory does not exist.
        BadFile: the files are damaged, or contradict each other.
        Unsupported: it is unknown how a tensor is divided among the ranks.
    """
    if not path.is_dir():
        raise BadRequest(f"{path} is not a directory; name the directory of the checkpoint")
    names = names_in(path)
    if any(map(RANK.fullmatch, names)) or names & {*RANK_FILES}:
        return read_ranks(path)
    return read_directory(path)


_LARGEST_CONFIG = 2**20
_FLAT = (
    "masters and moments are left out: {} does not have the shape of its weight. Megatron-Core up "
    "to 0.15 stores them flat, and .metadata lacks their shapes (mcore_data)"
)
_PLAIN = "torch_dcp or fsdp_dtensor"
_EXTRA = "._extra_state/shard_"
_GROUPS = "optimizer.distributed.dp_group_idx_0.optimizer/shard_0_1"
_OTHER_FORMS = "its tensors are in another form"


def read_directory(path: Path) -> Checkpoint:
    """Return the checkpoint below `path`, with a separate tensor for each layer and each expert.

    Tensors have the names of a model on one rank. Masters have the role `param`, and 16-bit weights
    that have a master have the role `param16`.

    Raises:
        BadFile: the save did not finish, or `.metadata` or metadata.json is damaged.
    """
    backend = _backend(path)
    common, facts, problems = _common(path)
    if backend == "torch_dist" and not (path / METADATA).exists():
        raise BadFile(
            f"{path} has no {METADATA}: the save was not finished; take an older checkpoint"
        )
    if (path / COMMON).exists() and not (path / CONFIG).exists():
        missing = (
            f"{path} has no {CONFIG}, which is written last: the save was not finished; take an "
            "older checkpoint"
        )
        problems.append(Problem(missing, CONFIG, prevents_output=True))
    described = existing_sizes(path, (COMMON, CONFIG, BRIDGE))
    if backend == _PLAIN and is_fsdp_dtensor(metadata := load_metadata(path)):
        return read_fsdp_dtensor(path, metadata)
    if backend != "torch_dist":
        notes = (f"tensors of the {backend} format are not listed",)
        origin = origin_of(
            path, f"Megatron {backend}", facts, ranks=None, notes=notes, refusal=_OTHER_FORMS
        )
        return Checkpoint(path, {}, origin, files=described, problems=problems)
    return _read(path, common, facts, described, problems)


def _read(
    path: Path,
    common: TorchFile | None,
    facts: MegatronFacts,
    described: dict[str, int],
    problems: list[Problem],
) -> Checkpoint:
    metadata = load_metadata(path)
    data = data_files(path, metadata)
    saved = {flat: metadata.tensors[flat] for flat in _first_names(metadata.tensors)}
    keys, items = keys_of({flat: t.dtype for flat, t in saved.items()}), Items(path, metadata)
    stored = {
        key: tensor_of(items, path, flat, saved[flat], data.sizes) for flat, key in keys.items()
    }
    shapes = {keys[flat]: shape for flat, shape in metadata.unflattened.items() if flat in keys}
    tensors = join_halves(path, unstack_tensors(path, stored, shapes))
    tensors = _with_ordered_adapters(tensors, facts, problems)
    state = BlobTrees(path, metadata.blobs)
    unread, optimizers = _unread(metadata), optimizers_in(facts.tree)
    if unread and (proved := proved_state(stored, tensors, facts)):
        tensors, unread = with_state(tensors, proved), ""
        optimizers = _groups_of_buckets(state) or optimizers
    if (strange := _misshapen(tensors)) is not None:
        tensors, unread = weights_alone(tensors), _FLAT.format(strange)
    extra = sum(_EXTRA in key for key in metadata.blobs)
    notes = [_layout(stored), *([unread] if unread else []), *data.notes]
    if len(saved) < len(metadata.tensors):
        again = count_text(len(metadata.tensors) - len(saved), "key")
        notes.append(f"second names of the same bytes are ignored: {again}")
    if extra:
        notes.append(
            f"{count_text(extra, 'extra state')} of parallel layers, which are not weights"
        )
    return Checkpoint(
        path,
        tensors,
        origin_of(
            path,
            "Megatron torch_dist",
            facts,
            ranks=saving_ranks(metadata) or None,
            notes=notes,
        ),
        aliases=aliases_of(facts, tensors),
        state=state,
        files=data.sizes | existing_sizes(path, metadata_names(path)) | described,
        model_sidecars=model_sidecars(path),
        archives=metadata.empty_archives(),
        problems=[*data.problems, *mixed_saves(path, metadata, keys, stored), *problems],
        native=MegatronNative(facts, optimizers, common, unread),
    )


def _with_ordered_adapters(
    tensors: dict[Key, Tensor], facts: MegatronFacts, problems: list[Problem]
) -> dict[Key, Tensor]:
    gated = facts.args.get("swiglu", facts.args.get("gated_linear_unit"))
    if gated is False:
        return tensors
    found, moved = reorder_gated_lora(tensors, facts.sizes.get("TP"))
    if moved and gated is None:
        problems.append(
            Problem(
                f"how tensor-parallel ranks share {moved[0]} depends on args.swiglu, which the "
                "files do not have: export the adapter with ms-swift (megatron export --to_hf)",
                prevents_output=True,
            )
        )
    return found


def _first_names(tensors: Mapping[str, SavedTensor]) -> list[str]:
    """Return the flat keys, except keys that share the bytes of an earlier key."""
    seen: set[tuple[Item, tuple[int, ...]]] = set()
    found = []
    for flat, saved in tensors.items():
        first = (saved.parts[0][1], saved.shape) if saved.parts else None
        if first is None or first not in seen:
            found.append(flat)
        if first is not None:
            seen.add(first)
    return found


def _misshapen(tensors: Mapping[Key, Tensor]) -> Key | None:
    """Return the key of a master or moment with a shape that differs from its weight's shape, or
    None."""
    for key, tensor in tensors.items():
        weight = tensors.get(Key(key.name, "param16")) or tensors.get(Key(key.name, "param"))
        is_state = key.role not in ("param16", "buffer", "state") and bool(tensor.shape)
        if is_state and weight is not None and weight.shape != tensor.shape:
            return key
    return None


def _groups_of_buckets(state: BlobTrees) -> tuple[Mapping[Any, Any], ...]:
    """Return the param groups that the files store next to the flat buckets of each rank."""
    tree = state.get(_GROUPS)
    found = tree[0] if isinstance(tree, list) and tree else None
    return (found,) if isinstance(found, Mapping) else ()


def _layout(stored: Mapping[Key, Tensor]) -> str:
    """Return a phrase that tells the user whether the files store the layers stacked or each layer
    separately.
    """
    names = [key.name for key in stored if key.role in ("param", "param16")]
    if any(stack_of(name).of_layers for name in names):
        return "layers are stacked in the files; here each layer has its own tensor"
    halves = any(name.endswith(("_w", "_v")) for name in names)
    return "each layer has separate keys" + (", and each half of a gated layer" if halves else "")


def _unread(metadata: Metadata) -> str:
    """Return a note for the user on optimizer state that is left out because it has no parameter
    names; an empty string if there is no such state.
    """
    flat: Iterable[str] = (*metadata.tensors, *metadata.blobs)
    if not any(map(BUCKETS.match, flat)):
        return ""
    return (
        "masters and moments are left out: they are in flat buffers in the order of the "
        "program's parameters (dp_reshardable and the like), which the files do not record; a "
        "checkpoint saved with --dist-ckpt-optim-fully-reshardable has them by name"
    )


def _backend(path: Path) -> str:
    """Return the kind of the checkpoint, such as `torch_dist` or `zarr`. Without Megatron's
    metadata.json, the kind is torch's DCP.
    """
    if not (path / CONFIG).exists():
        return "torch_dist" if (path / COMMON).exists() else _PLAIN
    try:
        config = json.loads(read_regular(path / CONFIG, _LARGEST_CONFIG))
    except (ValueError, RecursionError) as error:
        raise BadFile(f"{path / CONFIG} is not JSON: {error}; copy or download it again") from None
    backend = config.get("sharded_backend") if isinstance(config, dict) else None
    return backend if isinstance(backend, str) and len(backend) < 40 else "torch_dist"


def _common(path: Path) -> tuple[TorchFile | None, MegatronFacts, list[Problem]]:
    """Return the opened common.pt (None if it cannot be opened), the values that it or
    Megatron-Bridge's files record, and problems.
    """
    common, problems, tree = None, list[Problem](), dict[Any, Any]()
    if (path / COMMON).exists():
        try:
            common = TorchFile.open(path, COMMON)
            tree = common.tree if isinstance(common.tree, dict) else {}
            if not tree:
                problems.append(
                    Problem(
                        f"{path / COMMON} is not a dict, so it is not read; copy or download it "
                        "again",
                        COMMON,
                    )
                )
        except (BadFile, Unsupported) as error:
            problems.append(Problem(str(error), COMMON))
    elif (path / CONFIG).exists():
        problems.append(
            Problem(
                f"{path / COMMON} is missing, but no other file has the iteration; copy or "
                "download it again",
                COMMON,
            )
        )
    facts = bridge_facts(path, facts_of(tree))
    return common, facts, [*problems, *iteration_problem(path, facts, COMMON)]
