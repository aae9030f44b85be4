"""Read an item that Orbax saved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from zerotools.core.checkpoint import Checkpoint, Origin, Problem, Tensor
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadFile, Unsupported
from zerotools.formats.orbax.file_names import DATABASE, step_of
from zerotools.formats.orbax.plain_arrays import PlainArray, read_plain_array
from zerotools.formats.orbax.tensorstore_arrays import (
    ArrayPath,
    ArrayStore,
    StoredArray,
    array_file,
)
from zerotools.formats.orbax.tree_metadata import SavedTree, TreeValue, read_tree
from zerotools.formats.orbax.tree_names import name_arrays
from zerotools.io.files.directory_entries import folders_below
from zerotools.io.files.open_source import RemotePath
from zerotools.io.files.source_stamps import record_source_path
from zerotools.io.files.tolerated_damage import raise_or_record, record_lost_tensor
from zerotools.io.huggingface.model_sidecars import find_model_sidecars


@dataclass(frozen=True, slots=True)
class _FoundArray:
    """An array of the item: its tensor, the files with its elements and their sizes in bytes, and
    the indices of the chunks that were lost.
    """

    tensor: Tensor
    files: Mapping[str, int]
    lost: Sequence[str] = ()


def read(directory: Path, format_name: str) -> Checkpoint:
    """Return the checkpoint in `directory`, which holds one item (saved tree).

    Raises:
        BadRequest: TensorStore is needed but not installed.
        BadFile: the description of the tree or of an array is damaged.
        Unsupported: an array has a dtype that zerotools does not know, or the item is in an object
            store although an array needs TensorStore.
    """
    tree = read_tree(directory)
    sizes = _note_files(directory)
    names = name_arrays(value.path for value in tree.arrays)
    plain = _plain_arrays(directory, tree)
    coded = [value for value in tree.arrays if value not in plain]
    if coded and isinstance(directory, RemotePath):
        raise Unsupported(
            f"{directory}: the array {coded[0].name} is compressed or in a database, and "
            "zerotools reads such arrays only from a disk; copy the checkpoint to a disk and "
            "pass the path of the copy"
        )
    path = ArrayPath(directory) if coded else directory
    found = {value: _of_plain(array, sizes) for value, array in plain.items()}
    if coded:
        found |= _coded_arrays(ArrayStore(path, tree.zarr), coded, has_all=tree.has_all_chunks)
    arrays = {value: found[value] for value in tree.arrays if value in found}
    return Checkpoint(
        root=path,
        tensors={names.keys[value.path]: array.tensor for value, array in arrays.items()},
        origin=Origin(format_name, path, step=step_of(directory), notes=tuple(_notes(tree.others))),
        files={file: size for array in arrays.values() for file, size in array.files.items()},
        model_sidecars=find_model_sidecars(directory),
        problems=[*_problems(path, arrays)],
        native=names,
    )


def _note_files(directory: Path) -> dict[str, int]:
    """Record every file of the item as a source. Return the size in bytes of each, keyed by
    relative name.

    Hidden files directly in the directory are left out, because Orbax does not write them:
    zerotools keeps its journal there.
    """
    return {
        path.relative_to(directory).as_posix(): record_source_path(path)
        for folder, names in folders_below(directory)
        for path in (folder / name for name in sorted(names))
        if path.is_file() and not (folder == directory and path.name.startswith("."))
    }


def _plain_arrays(directory: Path, tree: SavedTree) -> dict[TreeValue, PlainArray]:
    """Return the arrays with elements that have known positions in files."""
    if tree.zarr != 2 or not tree.has_all_chunks or (directory / DATABASE).is_file():
        return {}
    arrays = ((value, read_plain_array(directory, value.name)) for value in tree.arrays)
    return {value: array for value, array in arrays if array is not None}


def _of_plain(array: PlainArray, sizes: Mapping[str, int]) -> _FoundArray:
    files = [chunk.file for chunk in array.each_chunk()]
    there = {file: sizes[file] for file in files if file in sizes}
    lost = [file.removeprefix(f"{array.name}/") for file in files if file not in there]
    return _FoundArray(array.tensor(frozenset(there) if lost else None), there, lost)


def _coded_arrays(
    store: ArrayStore, values: Sequence[TreeValue], *, has_all: bool
) -> dict[TreeValue, _FoundArray]:
    """Return the arrays that TensorStore decodes. If `has_all` is True, Orbax wrote every chunk, so
    absent chunks are lost."""
    arrays = dict(_open_all(store, values))
    if has_all:
        arrays = _without_lost_chunks(store, arrays)
    found = {}
    for value, array in arrays.items():
        file = array_file(value.name, store.zarr)
        lost = [".".join(map(str, index)) or "0" for index in sorted(array.missing)]
        found[value] = _FoundArray(array.tensor(file), {file: array.file_bytes}, lost)
    return found


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
    """Return the arrays with `missing` set to the indices of their absent chunks. These chunks are
    lost, because Orbax wrote every chunk."""
    there = store.chunk_indices({value.name for value in arrays})
    found = {}
    for value, array in arrays.items():
        # In zarr 2, the chunk of a scalar is called 0, although a scalar has no indices.
        indices = {index[: len(array.shape)] for index in there.get(value.name, ())}
        lost = (index for index in product(*map(range, array.grid)) if index not in indices)
        found[value] = replace(array, missing=frozenset(lost))
    return found


def _problems(path: Path, arrays: Mapping[TreeValue, _FoundArray]) -> Iterator[Problem]:
    for value, array in arrays.items():
        if array.lost:
            yield Problem(
                f"{path}: the array {value.name} lacks {count_text(len(array.lost), 'chunk')} "
                f"({array.lost[0]}, ...), but Orbax wrote all of them; copy or download it again",
                next(iter(array.files), value.name),
                is_loss=True,
            )


def _notes(others: Iterable[TreeValue]) -> Iterator[str]:
    """Yield a note on the values that are not read because they are not arrays."""
    names = [value.name for value in others]
    if names:
        yield f"left out {count_text(len(names), 'value')} that are not arrays: {names[0]}, ..."
