"""Remove the optimizers from a DCP.

The items of an optimizer are removed from the data files, and its keys are removed from
`.metadata`. A directory with only an optimizer is deleted. All weights stay, even if they are
masters, because a DCP has no other copy of them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import replace
from typing import Any

from zerotools.core.checkpoint import Checkpoint
from zerotools.core.errors import Unsupported
from zerotools.core.target import FilePlan
from zerotools.core.thinning_changes import Keep, Thinning
from zerotools.formats.dcp.kept_for_writer import native_of
from zerotools.formats.dcp.name_flat_keys import name_tensors
from zerotools.formats.dcp.several_directories import dcp_prefixes
from zerotools.io.distcp.dcp_directory import joined_metadata, load_metadata, with_prefix
from zerotools.io.distcp.metadata import Metadata
from zerotools.io.distcp.prune_directory import plan_pruned

_STAYS = ("param", "param16", "buffer", "state")


def thin(source: Checkpoint, *, section: str | None = None) -> Thinning:
    """Plan how to remove the optimizers from `source`, a result of the DCP reader.

    `section` is the model that the user selected when `source` was read.

    Raises:
        Unsupported: without the optimizer, it would be unknown which tensors belong to the model.
    """
    native = native_of(source)
    kept = {key: key for key in source.tensors if key.role in _STAYS}
    dropped = {flat for key, flat in native.flat_keys.items() if key not in kept}
    of_optimizers = tuple(filter(None, native.optimizers))
    dropped |= {flat for flat in native.blobs if flat.startswith(of_optimizers)}
    removed: set[str] = set()
    rewritten: dict[str, FilePlan] = {}
    found, _ = dcp_prefixes(source.root)
    if dropped and native.job is None:
        _check_names(source, found, dropped, section)
    for prefix in found if dropped else ():
        part = plan_pruned(source.root / prefix, dropped)
        removed |= {prefix + name for name in part.removed}
        rewritten |= {prefix + name: plan for name, plan in part.rewritten.items()}
    return Thinning(Keep.MASTERS, kept, frozenset(removed), rewritten)


def _check_names(
    source: Checkpoint, found: list[str], dropped: Container[str], section: str | None
) -> None:
    """Check that the flat keys that are not dropped keep their names. Names are computed from all
    flat keys, so they could change when the keys in `dropped` are gone.

    Raises:
        Unsupported: a name would change.
    """
    parts = [with_prefix(prefix, load_metadata(source.root / prefix)) for prefix in found]
    left = _without(joined_metadata(parts, source.root), dropped)
    names = name_tensors(left, source.root, section).keys
    for key, flat in native_of(source).flat_keys.items():
        if flat not in dropped and names[flat] != key:
            raise Unsupported(
                f"{source.origin.path} cannot be thinned: its keys are a flat list, and without "
                f"the optimizer's keys {flat} would be read as {names[flat]} instead of {key}; "
                "write the weights to another directory with zerotools convert --to safetensors"
            )


def _without(metadata: Metadata, dropped: Container[str]) -> Metadata:
    def left(table: Mapping[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in table.items() if key not in dropped}

    return replace(
        metadata,
        tensors=left(metadata.tensors),
        blobs=left(metadata.blobs),
        paths=None if metadata.paths is None else left(metadata.paths),
        order=tuple(key for key in metadata.order if key not in dropped),
    )
