"""Read an item that Orbax saved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from zerotools.core.checkpoint import Checkpoint, Origin, Problem, Tensor
from zerotools.core.counts_and_sizes import count_text
from zerotools.core.errors import BadFile
from zerotools.formats.orbax.arrays_as_virtual_files import array_file, array_path
from zerotools.formats.orbax.file_names import DATABASE, step_of
from zerotools.formats.orbax.stored_bytes import ItemValues, keep_values, status_of_files
from zerotools.formats.orbax.tensorstore_arrays import ArrayDecoder
from zerotools.formats.orbax.tree_metadata import SavedTree, TreeValue, read_tree
from zerotools.formats.orbax.tree_names import name_arrays
from zerotools.formats.orbax.uncompressed_zarr_arrays import PlainArray, read_plain_array
from zerotools.io.files.source_stamps import record_source
from zerotools.io.files.tolerated_damage import (
    is_tolerated,
    raise_or_record,
    record_lost_tensor,
)
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
        BadRequest: TensorStore or zstandard is needed but not installed.
        BadFile: the description of the tree or of an array, or the database, is damaged.
        Unsupported: an array has a dtype that zerotools does not know.
    """
    tree = read_tree(directory)
    files = status_of_files(directory)
    for name, status in files.items():
        record_source(directory / name, status)
    sizes = {name: status.st_size for name, status in files.items()}
    names = name_arrays(value.path for value in tree.arrays)
    plain = _plain_arrays(directory, tree)
    coded = [value for value in tree.arrays if value not in plain]
    path = array_path(directory) if coded else directory
    found = {value: _of_plain(array, sizes) for value, array in plain.items()}
    is_complete = True
    if coded:
        values = ItemValues(directory, files)
        keep_values(values)
        found |= _coded_arrays(values, coded, tree)
        is_complete = values.is_complete
    arrays = {value: found[value] for value in tree.arrays if value in found}
    return Checkpoint(
        root=path,
        tensors={names.keys[value.path]: array.tensor for value, array in arrays.items()},
        origin=Origin(format_name, path, step=step_of(directory), notes=tuple(_notes(tree.others))),
        files={file: size for array in arrays.values() for file, size in array.files.items()},
        model_sidecars=find_model_sidecars(directory),
        problems=[*_problems(path, arrays, is_complete)],
        native=names,
    )


def _plain_arrays(directory: Path, tree: SavedTree) -> dict[TreeValue, PlainArray]:
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
    values: ItemValues, wanted: Sequence[TreeValue], tree: SavedTree
) -> dict[TreeValue, _FoundArray]:
    """Return the arrays that TensorStore decodes. Absent chunks are lost if `tree.has_all_chunks`,
    or if the index of the values is not complete.
    """
    found = {}
    for value, decoder in _decoders(values, wanted, tree.zarr):
        array, file = decoder.array, array_file(value.name, tree.zarr)
        if tree.has_all_chunks or not values.is_complete:
            keys = ((index, f"{value.name}/{decoder.key(index)}") for index in array.indices())
            missing = frozenset(index for index, key in keys if key not in values)
            array = replace(array, missing=missing)
        lost = [".".join(map(str, index)) or "0" for index in sorted(array.missing)]
        found[value] = _FoundArray(array.tensor(file), {file: array.file_bytes}, lost)
    return found


def _decoders(
    values: ItemValues, wanted: Sequence[TreeValue], zarr: int
) -> Iterator[tuple[TreeValue, ArrayDecoder]]:
    """Yield the decoder of each array. Arrays without a readable description are left out if lost
    bytes are tolerated.
    """
    if not is_tolerated():
        yield from zip(wanted, values.decoders([each.name for each in wanted], zarr), strict=True)
        return
    for value in wanted:
        try:
            yield value, values.decoder(value.name, zarr)
        except BadFile as error:
            raise_or_record(values.directory / value.name, error)
            record_lost_tensor(values.directory / value.name, value.name)


def _problems(
    path: Path, arrays: Mapping[TreeValue, _FoundArray], is_complete: bool
) -> Iterator[Problem]:
    why = (
        "but Orbax wrote all of them"
        if is_complete
        else "which a damaged node of the database may list"
    )
    for value, array in arrays.items():
        if array.lost:
            yield Problem(
                f"{path}: the array {value.name} lacks {count_text(len(array.lost), 'chunk')} "
                f"({array.lost[0]}, ...), {why}; copy or download it again",
                next(iter(array.files), value.name),
                is_loss=True,
            )


def _notes(others: Iterable[TreeValue]) -> Iterator[str]:
    """Yield a note on the values that are not read because they are not arrays."""
    names = [value.name for value in others]
    if names:
        yield f"left out {count_text(len(names), 'value')} that are not arrays: {names[0]}, ..."
