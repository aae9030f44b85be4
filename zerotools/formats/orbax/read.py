"""Read an item that Orbax saved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from pathlib import Path

from zerotools.core.checkpoint import Checkpoint, Origin, Problem
from zerotools.core.counts import count_text
from zerotools.core.errors import BadFile
from zerotools.formats.orbax.arrays import ArrayPath, ArrayStore, StoredArray, array_file
from zerotools.formats.orbax.file_names import step_of
from zerotools.formats.orbax.tree_metadata import TreeValue, read_tree
from zerotools.formats.orbax.tree_names import name_arrays
from zerotools.io.files.source_stamps import note_source
from zerotools.io.files.tolerated_damage import raise_or_record, record_lost_tensor
from zerotools.io.huggingface.model_sidecars import find_model_sidecars


def read(directory: Path, format_name: str) -> Checkpoint:
    """Return the checkpoint in `directory`, which holds one item.

    Raises:
        BadRequest: TensorStore is not installed.
        BadFile: the description of the tree or of an array is damaged.
        Unsupported: an array has a type that zerotools does not know.
    """
    path = ArrayPath(directory)
    tree = read_tree(directory)
    for file in sorted(directory.rglob("*")):
        if file.is_file():
            note_source(file)
    names = name_arrays(value.path for value in tree.arrays)
    store = ArrayStore(path, tree.zarr)
    arrays = dict(_open_all(store, tree.arrays))
    if tree.has_all_chunks:
        arrays = _without_lost_chunks(store, arrays)
    files = {value: array_file(value.name, tree.zarr) for value in arrays}
    return Checkpoint(
        root=path,
        tensors={
            names.keys[value.path]: array.tensor(files[value]) for value, array in arrays.items()
        },
        origin=Origin(format_name, path, step=step_of(directory), notes=tuple(_notes(tree.others))),
        files={files[value]: array.file_bytes for value, array in arrays.items()},
        model_sidecars=find_model_sidecars(directory),
        problems=[*_problems(path, arrays, files)],
        native=names,
    )


def _open_all(
    store: ArrayStore, values: Iterable[TreeValue]
) -> Iterator[tuple[TreeValue, StoredArray]]:
    opening = {value: store.begin_open(value.name) for value in values}
    for value, future in opening.items():
        try:
            yield value, store.array(value.name, future)
        except BadFile as error:
            raise_or_record(store.directory / value.name, error)
            record_lost_tensor(store.directory / value.name, value.name)


def _without_lost_chunks(
    store: ArrayStore, arrays: Mapping[TreeValue, StoredArray]
) -> dict[TreeValue, StoredArray]:
    """Return the arrays with the chunks that they lack, although Orbax wrote each chunk."""
    there = store.chunk_indices({value.name for value in arrays})
    found = {}
    for value, array in arrays.items():
        # zarr 2 numbers the chunk of a scalar 0; it has no indices
        indices = {index[: len(array.shape)] for index in there.get(value.name, ())}
        lost = (index for index in product(*map(range, array.grid)) if index not in indices)
        found[value] = replace(array, missing=frozenset(lost))
    return found


def _problems(
    path: Path, arrays: Mapping[TreeValue, StoredArray], files: Mapping[TreeValue, str]
) -> Iterator[Problem]:
    for value, array in arrays.items():
        if array.missing:
            first = ".".join(map(str, min(array.missing))) or "0"
            yield Problem(
                f"{path}: the array {value.name} lacks {count_text(len(array.missing), 'chunk')} "
                f"({first}, ...), and Orbax wrote all of them; take another copy",
                files[value],
                is_loss=True,
            )


def _notes(others: Iterable[TreeValue]) -> Iterator[str]:
    """Yield a note on values that are not arrays, which are not read."""
    names = [value.name for value in others]
    if names:
        yield f"left out {count_text(len(names), 'value')} that are not arrays: {names[0]}, ..."
