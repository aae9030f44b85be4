"""Find the tensors of a damaged checkpoint that are complete, and the lost parts of the others."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from zerotools.core.checkpoint import Checkpoint, Key, Problem, Stamp, Tensor
from zerotools.core.errors import BadFile, Unsupported
from zerotools.core.flat_ranges import chunk_locations
from zerotools.formats import (
    FORMATS,
    FormatTable,
    detect,
    format_of,
    read_any,
    require_model,
)
from zerotools.io.distcp.item_chunks import ItemChunks
from zerotools.io.files.source_stamps import record_source_path, recording_sources
from zerotools.io.files.tolerated_damage import Damage, tolerating_damage
from zerotools.ops.execution.tile_workers import MemoryBudget
from zerotools.ops.salvage.find_holes import Holes, holes_of, sound_tensor
from zerotools.ops.salvage.undamaged_bytes import (
    SoundFile,
    SoundFiles,
    files_with_tensors,
    sound_files,
)
from zerotools.ops.verification.checkpoint_files import CheckpointFiles, FilesToScan, files_of
from zerotools.ops.verification.compare_manifest import adjacent_manifest
from zerotools.ops.verification.digest_manifest import DigestManifest
from zerotools.ops.verification.tensor_digests import digests_of
from zerotools.ops.verification.values_stored_twice import differing_weights

OTHER_VALUES = "has other values than those that the manifest next to the checkpoint records"


@dataclass(frozen=True)
class DamagedCheckpoint:
    """A checkpoint that was read although data is lost. Lost elements have no chunk, or a chunk in
    a missing or truncated file.

    Attributes:
        checkpoint: the part that could be read. Its problems include the losses.
        lost_names: the files that held the lost data, keyed by the name of the tensor.
        unnamed: lost files with unknown contents. They may have held tensors or tied names that no
            other file lists.

    File names are relative to the checkpoint's root if they are below it.
    """

    checkpoint: Checkpoint
    lost_names: Mapping[str, str]
    unnamed: tuple[str, ...]


@dataclass(frozen=True)
class ToExamine:
    """A checkpoint to examine for damage. Its metadata was read.

    `to_scan` are the files with its tensors. `metadata` are files that record the positions of
    tensors and have no checksums. `manifest` is the manifest next to the checkpoint. `stamps` are
    all files that were read.
    """

    remains: DamagedCheckpoint
    files: CheckpointFiles
    to_scan: FilesToScan
    metadata: tuple[str, ...]
    manifest: DigestManifest | None
    stamps: Mapping[Path, Stamp]
    notes: tuple[str, ...]
    table: FormatTable

    @property
    def bytes_to_read(self) -> int:
        """The total size in bytes of the files that hold tensors."""
        return sum(file.size for file in self.to_scan.files)


@dataclass(frozen=True)
class Examined:
    """The result of examining a checkpoint for damage.

    Attributes:
        sound: every tensor with only its undamaged chunks.
        holes: the missing parts of each incomplete tensor.
        damage: the damaged files with their defects.
        unchecked: the files with bytes that no checksum proves.
    """

    given: ToExamine
    sound: Mapping[Key, Tensor]
    holes: Mapping[Key, Holes]
    damage: tuple[Problem, ...]
    unchecked: tuple[str, ...]

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint with only its undamaged chunks."""
        return replace(self.given.remains.checkpoint, tensors=self.sound)

    @property
    def is_whole(self) -> bool:
        """True if no data is damaged or missing."""
        remains = self.given.remains
        lost = any(problem.is_loss for problem in self.damage)
        return not (self.holes or remains.lost_names or remains.unnamed or lost)


def _read_damaged(
    read: Callable[[], Checkpoint], stand_in: Path | None, table: FormatTable
) -> DamagedCheckpoint:
    """Read a checkpoint that may have lost bytes. `read` reads it."""
    other = None if stand_in is None else detect(stand_in, table=table).path
    with tolerating_damage(other) as damage:
        checkpoint = read()
    require_model(checkpoint)
    lost = [
        problem
        for problem in checkpoint.problems
        if problem.prevents_output and _is_lost(checkpoint, problem)
    ]
    names = {problem.tensor: problem.file or "" for problem in lost if problem.tensor is not None}
    names |= {name: _relative(checkpoint, file) for name, file in damage.names.items()}
    unnamed = [_relative(checkpoint, file) for file in damage.unnamed]
    unnamed += [problem.file for problem in lost if problem.file is not None]
    return DamagedCheckpoint(_with_faults(checkpoint, damage), names, tuple(dict.fromkeys(unnamed)))


def _is_lost(checkpoint: Checkpoint, problem: Problem) -> bool:
    """Return whether bytes are lost, rather than present and wrong."""
    is_gone = problem.file is not None and not (checkpoint.root / problem.file).exists()
    return problem.is_loss or is_gone


def _with_faults(checkpoint: Checkpoint, damage: Damage) -> Checkpoint:
    """Return the checkpoint with a problem for every damaged file. Problems that are losses are
    marked."""
    problems = [
        replace(problem, is_loss=_is_lost(checkpoint, problem)) for problem in checkpoint.problems
    ]
    told = {problem.file for problem in problems}
    for path, message in damage.faults.items():
        file = _relative(checkpoint, path)
        if file not in told:
            problems.append(Problem(message, file, is_loss=True))
    return replace(checkpoint, problems=problems)


def _relative(checkpoint: Checkpoint, path: Path) -> str:
    root = checkpoint.root.absolute()
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def read_remaining(
    path: Path,
    *,
    tag: str | None = None,
    layout: Path | None = None,
    section: str | None = None,
    stand_in: Path | None = None,
    table: FormatTable = FORMATS,
) -> ToExamine:
    """Read the remaining metadata of the checkpoint at `path`. `stand_in` may be another checkpoint
    of the same run, with names and shapes to use if their lists are lost.

    Raises:
        BadRequest: `path` does not exist, or has no such tag or section.
        BadFile: `path` is not a checkpoint; the list of tensors is lost; or files belong to another
            save or rank.
        Unsupported: zerotools does not read its format.
    """
    notes = []
    with recording_sources() as sources:
        read = partial(read_any, path, tag=tag, layout=layout, section=section, table=table)
        remains = _read_damaged(read, stand_in, table)
        _refuse_mixtures(remains.checkpoint)
        files = files_of(remains.checkpoint, table)
        manifest = None
        try:
            other = adjacent_manifest(files)
            manifest = None if other is None else other.manifest
        except (BadFile, Unsupported) as error:
            notes.append(f"the manifest is not used: {error}")
        to_scan = files_with_tensors(remains.checkpoint, files)
        for file in to_scan.files:
            record_source_path(files.base / file.name)
    metadata = _unproved_metadata(remains.checkpoint, files, to_scan)
    return ToExamine(
        remains, files, to_scan, metadata, manifest, sources.stamps, tuple(notes), table
    )


def _unproved_metadata(
    checkpoint: Checkpoint, files: CheckpointFiles, to_scan: FilesToScan
) -> tuple[str, ...]:
    """Return the files without tensors and without checksums that were read to find the tensors."""
    holding = {file.name for file in to_scan.files}
    base = files.base.absolute()
    read = {p.relative_to(base).as_posix() for p in checkpoint.stamps if p.is_relative_to(base)}
    return tuple(name for name in to_scan.unchecked if name in (read & files.essential) - holding)


def _refuse_mixtures(checkpoint: Checkpoint) -> None:
    """Refuse undamaged files that belong to another save, because the export would mix two models.

    Raises:
        BadFile: there is such a file. The message names the first.
    """
    doubtful = {p.file: p for p in checkpoint.problems if not p.is_loss}
    found = next((p for p in checkpoint.problems if p.prevents_output and not p.is_loss), None)
    if found is None and set(doubtful) & set(checkpoint.files):
        used = (file for tensor in checkpoint.tensors.values() for file in _files_of(tensor))
        found = next((doubtful[file] for file in used if file in doubtful), None)
    if found is not None:
        raise BadFile(
            f"{found.message}; salvage handles lost bytes, but does not know which of these "
            "files are right: move the wrong ones elsewhere, and run salvage again"
        )


def _files_of(tensor: Tensor) -> Iterator[str]:
    if isinstance(tensor.chunks, ItemChunks):
        yield from (item.file for item in tensor.chunks.items())
    else:
        yield from (file for file, _ in chunk_locations(tensor))


def examine_checkpoint(
    given: ToExamine,
    budget: MemoryBudget,
    on_bytes: Callable[[int], None] = lambda _: None,
) -> Examined:
    """Read every byte of the files that hold tensors. `on_bytes` gets the number of bytes that were
    read since its last call.

    Raises:
        Unsupported: a weight differs from the cast of its master.
    """
    files = sound_files(
        given.files, given.to_scan, given.manifest, budget, on_bytes, given.metadata
    )
    examined = _examined(given, files, budget)
    _refuse_other_weights(examined, files, budget)
    return examined


def examine_files(given: ToExamine, names: Collection[str], budget: MemoryBudget) -> Examined:
    """Examine only the files `names`, as `examine_checkpoint` does. Other files count as
    undamaged."""
    wanted = [file for file in given.to_scan.files if file.claimed_as in names]
    to_scan = replace(given.to_scan, files=wanted)
    files = sound_files(given.files, to_scan, given.manifest, budget)
    rest = {
        file.claimed_as: SoundFile(file.size)
        for file in given.to_scan.files
        if file.claimed_as is not None and file.claimed_as not in names
    }
    limited = replace(given, manifest=None)
    return _examined(limited, replace(files, files={**rest, **files.files}), budget)


def _examined(given: ToExamine, files: SoundFiles, budget: MemoryBudget) -> Examined:
    checkpoint = given.remains.checkpoint
    sound, holes = dict[Key, Tensor](), dict[Key, Holes]()
    for key, tensor in checkpoint.tensors.items():
        sound[key], lost = sound_tensor(tensor, files.sound_bytes)
        found = holes_of(key, sound[key], lost)
        if found is not None:
            holes[key] = found
    judged = dict(_judged(given, files, sound, budget))
    for key, tensor in judged.items():
        whole = holes_of(key, tensor)
        sound[key] = tensor
        holes.pop(key, None)
        if whole is not None:
            holes[key] = replace(whole, why=OTHER_VALUES)
    damage = _damage(checkpoint, given.files, files)
    unchecked = files.unchecked
    if given.manifest is not None:  # it has every name, shape and digest
        unjudged = {f for key, each in sound.items() if key not in judged for f in _files_of(each)}
        unchecked = tuple(name for name in unchecked if name in unjudged)
    return Examined(given, sound, holes, damage, (*files.metadata, *unchecked))


def _judged(
    given: ToExamine, files: SoundFiles, sound: Mapping[Key, Tensor], budget: MemoryBudget
) -> Iterator[tuple[Key, Tensor]]:
    """Yield the tensors for which the manifest's digest overrules the checksums.

    With the recorded digest, a tensor gets all its chunks, even if the checksum of a record is
    wrong. With another digest, a tensor that no checksum has refuted gets no chunks.
    """
    if given.manifest is None:
        return
    checkpoint = given.remains.checkpoint
    there: dict[Key, Tensor] = {}
    for key, expected in given.manifest.tensors.items():
        tensor = checkpoint.tensors.get(key)
        if tensor is None or (tensor.dtype, tensor.shape) != (expected.dtype, expected.shape):
            continue
        physical, _ = sound_tensor(tensor, files.bytes_there)
        if holes_of(key, physical) is None and not _is_proved(physical, files):
            there[key] = physical
    read = replace(checkpoint, tensors=there)
    for key, found in digests_of(read, there, budget).items():
        if found.digest == given.manifest.tensors[key].digest:
            yield key, there[key]
        elif holes_of(key, sound[key]) is None or _is_unchecked(there[key], files):
            yield key, replace(there[key], chunks=())


def _is_proved(tensor: Tensor, files: SoundFiles) -> bool:
    """Return whether a manifest proves that all files with parts of the tensor are undamaged."""
    return all(files.files[chunk.file].is_proved for chunk in tensor.chunks)


def _is_unchecked(tensor: Tensor, files: SoundFiles) -> bool:
    return any(files.files[chunk.file].records is None for chunk in tensor.chunks)


def _damage(
    checkpoint: Checkpoint, files: CheckpointFiles, found: SoundFiles
) -> tuple[Problem, ...]:
    """Return the problems that the reader found, then one for each other damaged file."""
    problems = {problem.message: problem for problem in checkpoint.problems}
    told = {problem.file for problem in checkpoint.problems}
    below = checkpoint.root.relative_to(files.base) if checkpoint.root != files.base else Path()
    for name, message in found.faults:
        own = Path(name).relative_to(below).as_posix() if Path(name).is_relative_to(below) else name
        if own not in told:
            problems.setdefault(message, Problem(message, own, is_loss=True))
    return tuple(problems.values())


def _refuse_other_weights(examined: Examined, files: SoundFiles, budget: MemoryBudget) -> None:
    """Refuse weights that differ from the cast of their masters, as an export of an undamaged
    checkpoint does.

    Raises:
        Unsupported: there is such a weight. The message names the first.
    """
    checkpoint = examined.given.remains.checkpoint
    pairs = format_of(checkpoint, examined.given.table).weight_pairs(checkpoint)
    for found in differing_weights(examined.checkpoint, _whole_pairs(pairs, files), budget):
        raise Unsupported(
            f"{checkpoint.origin.path}: {found.name} is not equal to its master after a cast to "
            f"{found.weight.dtype}, although both files are undamaged: {found.elements} of "
            f"{found.numel} elements differ. Possible reasons: the files are from two saves, the "
            "order of the flat buffers is not that of param_shapes, or the run saved averaged "
            "weights (EMA); take another checkpoint"
        )


def _whole_pairs(
    pairs: Iterable[tuple[str, Tensor, Tensor]], files: SoundFiles
) -> Iterator[tuple[str, Tensor, Tensor]]:
    for name, master, weight in pairs:
        both = [sound_tensor(tensor, files.sound_bytes)[0] for tensor in (master, weight)]
        if all(holes_of(Key(name, "param"), tensor) is None for tensor in both):
            yield name, both[0], both[1]
