"""Lay out the weights of a checkpoint as one Orbax item, in the form that `StandardCheckpointer`
saves.

The tree has the form of a Flax module's variables in a `TrainState`, which MaxText saves too: a
weight `decoder.norm.scale` is at `params.params.decoder.norm.scale`. Arrays are written without
compression (`uncompressed_zarr_arrays`), because the position of each element must be known before
anything is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from zerotools.core.checkpoint import Checkpoint, Key, Tensor
from zerotools.core.errors import Unsupported
from zerotools.core.target import FilePlan, Target
from zerotools.formats.orbax.file_names import COMMITTED, TREE
from zerotools.formats.orbax.tree_metadata import tree_file
from zerotools.formats.orbax.tree_names import Words, name_arrays
from zerotools.formats.orbax.uncompressed_zarr_arrays import METADATA, cut_in_chunks
from zerotools.io.files.directory_entries import stays_below_root
from zerotools.io.huggingface.lay_out_model_directory import keys_by_name, sidecar_plans
from zerotools.io.output.files_without_tensors import file_of_bytes

DEFAULT_MAX_CHUNK_BYTES = 2**28
_ROOT = ("params", "params")
_MOST_NAME_BYTES = 255


def lay_out(
    source: Checkpoint, destination: Path, format_name: str, *, max_chunk_bytes: int
) -> Target:
    """Plan an item in `destination` with the weights of `source`, in their dtypes.

    The roles must be `param` or `buffer`. Each array is cut into files of at most
    `max_chunk_bytes`.

    Raises:
        BadRequest: there is nothing to write, two tensors have the same name, or `max_chunk_bytes`
            is too small.
        Unsupported: Orbax cannot store the name or the dtype of a tensor.
    """
    keys = keys_by_name(source)
    paths = {name: (*_ROOT, *name.split(".")) for name in keys}
    _refuse_names(paths)
    plans = {
        TREE: file_of_bytes(tree_file(paths.values())),
        COMMITTED: file_of_bytes(b"written by zerotools\n"),
    }
    tensors: dict[Key, Tensor] = {}
    for name, path in paths.items():
        array = cut_in_chunks(".".join(path), source.tensors[keys[name]], max_chunk_bytes)
        plans[f"{array.name}/{METADATA}"] = file_of_bytes(array.metadata)
        for chunk in array.each_chunk():
            plans[chunk.file] = FilePlan(array.file_bytes)
        tensors[keys[name]] = array.tensor()
    plans |= sidecar_plans(source, tensors.values())
    origin = replace(source.origin, format=format_name, path=destination, notes=())
    sizes = {name: plan.size for name, plan in plans.items()}
    return Target(Checkpoint(destination, tensors, origin, files=sizes), plans)


def _refuse_names(paths: Mapping[str, Words]) -> None:
    """Check that a tree of dicts can have arrays at the paths `paths`, which is keyed by tensor
    name.

    Raises:
        Unsupported: a path is not possible. The message names the tensor.
    """
    for name, path in paths.items():
        stored = ".".join(path)
        words = stored.split("/")
        if not stays_below_root(stored) or "" in path:
            raise Unsupported(
                f"the name {name!r:.200} has an empty part or leads out of the directory, so it "
                "cannot be a path in an Orbax tree; rename the tensor"
            )
        if max(len(word.encode("utf-8", "surrogateescape")) for word in words) > _MOST_NAME_BYTES:
            raise Unsupported(
                f"the name {name!r:.80} has {len(name)} characters, and Orbax makes it the name of "
                f"a directory, which has at most {_MOST_NAME_BYTES} bytes; rename the tensor"
            )
    _refuse_nested(paths)
    for path, key in name_arrays(paths.values()).keys.items():
        name = ".".join(path[len(_ROOT) :])
        if key.name != name:
            raise Unsupported(
                f"the weight {name} would be read from an Orbax tree under the name {key.name}, "
                "because of the first or last word of its name; rename the tensor"
            )


def _refuse_nested(paths: Mapping[str, Words]) -> None:
    """Raise an error if one array would be inside another array, either in the tree or, because of
    a slash in its name, on disk."""
    trees, folders = set(paths.values()), {".".join(path) for path in paths.values()}
    for name, path in paths.items():
        above = next((path[:at] for at in range(len(path)) if path[:at] in trees), None)
        inside = None if above is None else ".".join(above)
        inside = inside or _folder_of(".".join(path), folders)
        if inside is not None:
            raise Unsupported(
                f"{inside.removeprefix('.'.join(_ROOT) + '.')} is a tensor, so {name} cannot lie "
                "below it in an Orbax tree; rename one of them"
            )


def _folder_of(name: str, folders: Iterable[str]) -> str | None:
    parts = name.split("/")
    above = ("/".join(parts[:at]) for at in range(1, len(parts)))
    return next((each for each in above if each in folders), None)
